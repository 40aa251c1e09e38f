"""Two admins with the same form open: the last write holds, and the audit log has both, each with what it replaced.

What one removed, the other cannot remove again, and reads so on the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.alerts import webhooks
from portal.alerts.models import WebhookEndpoint
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog.models import Model
from portal.organizations.invitations import invite
from portal.organizations.models import Invitation, Member
from portal.organizations.roles import Role
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import Cast

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
LIMIT = {"scope": "", "what": "tokens:day", "model": "", "mode": "hard"}


@pytest.fixture
def addresses(cast: Cast, model: Model, settings: Any) -> dict[str, str]:
    """Of what can be changed, the address of its form."""
    settings.WEBHOOK_ALLOW_PRIVATE = True
    hook = webhooks.add(organization=cast.organization, url="http://127.0.0.1:9/a", description="", actor=cast.ada)
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    rows = {
        "limits": [],
        "member_role": [Member.objects.get(user=cast.ben).id],
        "webhook_change": [hook.endpoint.id],
        "api_key": [key.id],
        "project_rename": [cast.project.slug],
        "settings": [],
    }
    return {name: reverse(f"portal:{name}", args=[cast.organization.slug, *row]) for name, row in rows.items()}


@pytest.mark.parametrize(
    ("name", "field", "others"),
    [
        ("limits", "amount", LIMIT),
        ("webhook_change", "description", {"url": "http://127.0.0.1:9/a", "is_enabled": "on"}),
        ("api_key", "name", {}),
        ("project_rename", "name", {}),
        ("settings", "name", {"time_zone": "UTC"}),
    ],
)
def test_the_last_write_holds_and_both_are_on_record(
    name: str, field: str, others: dict[str, str], addresses: dict[str, str], cast: Cast, signed_in: Browser
) -> None:
    for who, value in ((cast.ada, "1001"), (cast.dee, "1002")):
        answer = signed_in(who).post(addresses[name], {**others, field: value})
        assert answer.status_code == 302, answer.content.decode()
    first, second = AuditEvent.objects.filter(organization=cast.organization).order_by("id")[::1][-2:]
    assert (first.actor, second.actor) == (cast.ada, cast.dee)
    changed = {key for key, value in second.after.items() if second.before.get(key) != value}
    assert changed
    assert {key: second.before[key] for key in changed} == {key: first.after[key] for key in changed}
    assert "1002" in {str(second.after[key]) for key in changed}


def test_a_role_that_two_change_is_the_later_one(addresses: dict[str, str], cast: Cast, signed_in: Browser) -> None:
    for who, role in ((cast.ada, "billing"), (cast.dee, "viewer")):
        assert signed_in(who).post(addresses["member_role"], {"role": role}).status_code == 302
    events = AuditEvent.objects.filter(action="member.role_changed").order_by("id")
    assert [(event.before["role"], event.after["role"]) for event in events] == [
        ("developer", "billing"),
        ("billing", "viewer"),
    ]


@pytest.mark.parametrize(
    ("name", "page", "text"),
    [
        ("limit_remove", "limits", "This limit is gone already"),
        ("webhook_remove", "webhooks", "This webhook is gone already"),
        ("member_remove", "members", "This person is a member no more"),
        ("invitation_withdraw", "members", "This invitation is open no longer"),
    ],
)
def test_what_a_colleague_removed_is_told_on_the_list(
    name: str, page: str, text: str, addresses: dict[str, str], cast: Cast, signed_in: Browser
) -> None:
    change_quota(organization=cast.organization, kind=QuotaKind.TOKENS, window=Window.DAY, limit=1000, actor=cast.ada)
    invite(organization=cast.organization, email="eve@example.com", role=Role.VIEWER, actor=cast.ada)
    row_id = {
        "limit_remove": Quota.objects.get().id,
        "webhook_remove": WebhookEndpoint.objects.get().id,
        "member_remove": Member.objects.get(user=cast.ben).id,
        "invitation_withdraw": Invitation.objects.get().id,
    }[name]
    address = reverse(f"portal:{name}", args=[cast.organization.slug, row_id])
    first = signed_in(cast.ada).post(address, follow=True)
    assert text not in first.content.decode()
    events = AuditEvent.objects.count()
    second = signed_in(cast.dee).post(address, follow=True)
    assert second.redirect_chain == [(reverse(f"portal:{page}", args=[cast.organization.slug]), 302)]
    assert text in second.content.decode()
    assert AuditEvent.objects.count() == events
