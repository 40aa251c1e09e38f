"""Alert rules of an organization, and telling people and programs what they found."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext_lazy as _
from kombu.exceptions import OperationalError

from portal.alerts.delivery import enqueue_after_commit, make_delivery
from portal.alerts.kinds import RuleKind
from portal.alerts.models import Alert, AlertRule, WebhookEndpoint
from portal.alerts.wording import figures_of, make_title, title_of
from portal.api_keys.models import ApiKey
from portal.audit.services import record_event
from portal.errors import NotPossible
from portal.organizations.models import Member, Organization, Project
from portal.permissions import Permission, roles_with
from portal.users.models import User

logger = logging.getLogger(__name__)

RULE_LIMIT = 50


def watch_soft_limits(organization: Organization, *, actor: User | None) -> None:
    """One rule of the organization tells of all its soft limits; a repeat changes nothing."""
    if not AlertRule.objects.filter(organization=organization, kind=RuleKind.SOFT_LIMIT).exists():
        create_rule(organization=organization, kind=RuleKind.SOFT_LIMIT, actor=actor)


@transaction.atomic
def create_rule(
    *,
    organization: Organization,
    kind: RuleKind,
    actor: User | None,
    window: str = "",
    amount_nano: int | None = None,
    thresholds: Sequence[int] = (),
    project: Project | None = None,
    api_key: ApiKey | None = None,
) -> AlertRule:
    """Watched from the next evaluation on, within a minute. A repeat makes a second rule."""
    if any(owned and owned.organization_id != organization.id for owned in (project, api_key)):
        raise NotPossible(_("An alert's project and key must belong to the organization."))
    if AlertRule.objects.filter(organization=organization).count() >= RULE_LIMIT:
        raise NotPossible(_("An organization has at most %(limit)s alerts; remove one first.") % {"limit": RULE_LIMIT})
    rule = AlertRule.objects.create(
        organization=organization,
        kind=kind,
        window=window,
        amount_nano=amount_nano,
        thresholds=sorted(set(thresholds)),
        project=project,
        api_key=api_key,
        created_by=actor,
    )
    _record(rule, actor, "alert_rule.created", after=_told(rule))
    return rule


@transaction.atomic
def remove_rule(*, rule: AlertRule, actor: User) -> None:
    """With the alerts it raised."""
    _record(rule, actor, "alert_rule.removed", before=_told(rule))
    rule.delete()


def _told(rule: AlertRule) -> dict[str, Any]:
    return {
        "amount_nano": rule.amount_nano,
        "kind": rule.kind,
        "window": rule.window or None,
        "thresholds": ", ".join(f"{threshold} %" for threshold in rule.thresholds) or None,
        "project": rule.project.name if rule.project else None,
        "api_key": rule.api_key.name if rule.api_key else None,
    }


def _record(
    rule: AlertRule,
    actor: User | None,
    action: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    record_event(
        organization_id=rule.organization_id,
        actor=actor,
        action=action,
        subject=rule,
        label=rule.kind,
        before=before,
        after=after,
    )


@transaction.atomic
def raise_alert(*, rule: AlertRule, threshold: int, window_start: datetime, facts: dict[str, Any]) -> Alert | None:
    """Tells people and webhooks after commit. None when it, or a budget's higher one, was told of in this window."""
    told = Alert.objects.filter(rule=rule, window_start=window_start)
    # The threshold of a soft limit is the limit's id, and no amount.
    if rule.kind == RuleKind.BUDGET and told.filter(threshold__gte=threshold).exists():
        return None
    # Two evaluations at once: the unique constraint lets one row in.
    alert, is_new = Alert.objects.get_or_create(
        rule=rule,
        threshold=threshold,
        window_start=window_start,
        defaults={"organization_id": rule.organization_id, "title": make_title(rule, facts)[:200], "facts": facts},
    )
    if not is_new:
        return None
    for endpoint in WebhookEndpoint.objects.filter(organization_id=rule.organization_id, is_enabled=True):
        delivery = make_delivery(
            endpoint,
            event_id=alert.event_id,
            event_type=f"alert.{rule.kind}",
            organization=rule.organization,
            data={"title": alert.title, **facts, "url": alerts_url(rule.organization)},
        )
        enqueue_after_commit(delivery)
    transaction.on_commit(partial(_enqueue_mail, alert.id))
    return alert


def _enqueue_mail(alert_id: int) -> None:
    from portal.tasks import send_alert_mail

    try:
        send_alert_mail.delay(alert_id)
    except OperationalError as error:
        # The sweep sends it.
        logger.warning("alert_mail_not_enqueued alert=%s error=%s", alert_id, type(error).__name__)


def alerts_url(organization: Organization) -> str:
    return settings.PUBLIC_URL + reverse("portal:alerts", args=[organization.slug])


def recipients(organization: Organization) -> list[User]:
    """Those who can do something about it."""
    members = Member.objects.filter(organization=organization, role__in=roles_with(Permission.MANAGE_ALERTS))
    return [member.user for member in members.select_related("user").order_by("id")]


def send_mail(alert_id: int) -> None:
    """One mail for each recipient, in their language. The claim lets one sender through; it is given back when the mail
    server fails."""
    if not Alert.objects.filter(id=alert_id, mailed_at=None).update(mailed_at=timezone.now()):
        return
    alert = Alert.objects.select_related("organization", "rule__project", "rule__api_key").get(id=alert_id)
    try:
        for user in recipients(alert.organization):
            with translation.override(user.language or settings.LANGUAGE_CODE):
                _mail(alert, user).send()
    except OSError:
        Alert.objects.filter(id=alert_id).update(mailed_at=None)
        raise


def _mail(alert: Alert, user: User) -> EmailMultiAlternatives:
    context = {
        "alert": alert,
        "title": title_of(alert),
        "figures": figures_of(alert),
        "url": alerts_url(alert.organization),
        "usage_url": settings.PUBLIC_URL + reverse("portal:usage", args=[alert.organization.slug]) + "?days=1",
        "public_url": settings.PUBLIC_URL,
    }
    text = render_to_string("emails/alert/body.txt", context)
    mail = EmailMultiAlternatives(f"{alert.organization.name}: {context['title']}", text, to=[user.email])
    mail.attach_alternative(render_to_string("emails/alert/body.html", context), "text/html")
    return mail


def unmailed(*, now: datetime) -> list[int]:
    """Alerts whose mail was lost on the way, for the sweep."""
    lost = Alert.objects.filter(mailed_at=None, created_at__lt=now - timedelta(minutes=1))
    return list(lost.order_by("id").values_list("id", flat=True)[:100])
