"""What people and programs left in lists: the audit log, alerts, webhooks and their deliveries, exports."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from django.db import connection

from portal.operations.seeding.copying import copy_rows, ids_of
from portal.operations.seeding.plan import Made, Say, Size
from portal.sealing import seal

# So many of the largest organizations have alerts, webhooks and exports.
WITH_WEBHOOKS = 100
EXPORTS = 40

_KEYS_ISSUED = """
INSERT INTO portal_auditevent (organization_id, actor_id, actor_label, action, subject_type, subject_id, subject_label,
                               after, reason, user_agent, credential, created_at)
SELECT key.organization_id, key.created_by_id, member.email, 'api_key.issued', 'apikey', key.id::text,
       key.name || ' (' || key.prefix || '…)', jsonb_build_object('name', key.name), '', '', '', key.created_at
  FROM portal_apikey key JOIN portal_user member ON member.id = key.created_by_id
 WHERE key.id >= %(key)s AND key.id < %(key)s + %(keys)s ORDER BY key.created_at
"""
# As many as the organization has keys.
_DELIVERIES = """
INSERT INTO portal_webhookdelivery (organization_id, endpoint_id, event_id, event_type, body, state, attempts,
                                    last_status, last_error, last_duration_ms, last_attempt_at, created_at)
SELECT key.organization_id, endpoint.id, gen_random_uuid(), 'budget.passed',
       '{"type": "budget.passed", "object": "seeded ' || key.id || '"}', state, 1, CASE state WHEN 'failed' THEN 500
       ELSE 200 END, '', 40 + key.id %% 90, at, at
  FROM portal_webhookendpoint endpoint JOIN portal_apikey key USING (organization_id)
 CROSS JOIN LATERAL (SELECT CASE key.id %% 50 WHEN 0 THEN 'failed' ELSE 'delivered' END AS state,
                            %(end)s::timestamptz - make_interval(mins => (key.id %% 100000)::int) AS at) delivery
 WHERE endpoint.id >= %(endpoint)s AND endpoint.id < %(endpoint)s + %(endpoints)s ORDER BY at
"""


def make_activity(size: Size, made: Made, say: Say) -> None:
    organizations = made.organization_ids[:WITH_WEBHOOKS]
    endpoints = ids_of("portal.WebhookEndpoint", len(organizations))
    sealed = seal("whsec-of-nobody")
    copy_rows(
        "portal.WebhookEndpoint",
        ("id", "organization_id", "url", "sealed_secret", "is_enabled"),
        (
            (endpoint, organization, f"https://seed-{organization}.invalid/hook", sealed, False)
            for endpoint, organization in zip(endpoints, organizations, strict=True)
        ),
    )
    _make_alerts(size, organizations)
    _make_exports(size, organizations)
    with connection.cursor() as cursor:
        cursor.execute(_KEYS_ISSUED, {"key": made.first_key_id, "keys": size.keys})
        say(f"{cursor.rowcount:,} audit events")
        cursor.execute(_DELIVERIES, {"endpoint": endpoints[0], "endpoints": len(endpoints), "end": size.end})
        say(f"{cursor.rowcount:,} deliveries of webhooks")


def _make_alerts(size: Size, organizations: range) -> None:
    """Low credit, every second hour."""
    rules = ids_of("portal.AlertRule", len(organizations))
    copy_rows(
        "portal.AlertRule",
        ("id", "organization_id", "kind", "amount_nano"),
        ((rule, organization, "credit", 10**9) for rule, organization in zip(rules, organizations, strict=True)),
    )
    moments = [size.start + timedelta(hours=2 * number) for number in range(size.days * 12)]
    copy_rows(
        "portal.Alert",
        ("event_id", "organization_id", "rule_id", "window_start", "title", "created_at"),
        (
            (uuid4(), organization, rule, at, "Credit is below $1.00", at)
            for at in moments
            for rule, organization in zip(rules, organizations, strict=True)
        ),
    )


def _make_exports(size: Size, organizations: range) -> None:
    moments = [size.start + timedelta(minutes=number) for number in range(EXPORTS)]
    copy_rows(
        "billing.Export",
        ("organization_id", "kind", "format", "period", "state", "created_at", "finished_at", "expires_at"),
        (
            (organization, "usage", "csv", f"{at:%Y-%m}", "finished", at, at, at + timedelta(days=7))
            for organization in organizations
            for at in moments
        ),
    )
