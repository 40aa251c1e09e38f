"""Compares every rule with what the books say now, and raises what it finds.

Reads billing's selectors only, so an alert and an invoice tell the same figures. Running calls are not counted yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from statistics import median
from typing import Any
from zoneinfo import ZoneInfo

from django.db import DatabaseError
from django.utils import translation

from billing.ledger import selectors as ledger
from billing.money import to_decimal
from billing.usage import selectors as usage
from portal.alerts.kinds import BudgetWindow, RuleKind
from portal.alerts.models import AlertRule
from portal.alerts.services import raise_alert
from portal.alerts.wording import scope_name
from portal.operations.reasons import OURS
from portal.quotas import snapshot
from portal.quotas.refusals import refused_since
from portal.quotas.selectors import soft_quotas
from portal.quotas.use import CALENDAR
from portal.quotas.use import window_bounds as quota_window
from portal.quotas.wording import limit_text

logger = logging.getLogger(__name__)

# An ordinary hour is the median of those that cost anything in a week; with fewer of them nothing is ordinary yet.
HISTORY = timedelta(days=7)
LEAST_HOURS = 12
FAILURES_SPAN = timedelta(minutes=15)
LEAST_CALLS = 20
# A call belongs to the window that it began in, and may end after it.
LATE = timedelta(hours=1)


def evaluate_all(*, now: datetime) -> int:
    """Returns how many alerts were raised. Safe to repeat: a threshold is told of once in its window.

    What is written down is English, for programs; pages and mails say it in their reader's language.
    """
    with translation.override("en"):
        return _evaluate_all(now)


def _evaluate_all(now: datetime) -> int:
    raised = 0
    rules = AlertRule.objects.filter(organization__closed_at=None).select_related("organization", "project", "api_key")
    for rule in rules.order_by("organization_id", "id").iterator(500):
        try:
            raised += _EVALUATE[RuleKind(rule.kind)](rule, now)
        except DatabaseError:
            # One organization's trouble must not keep the others' alerts back.
            logger.exception("alert_rule_not_evaluated rule=%s", rule.id)
    return raised


def window_bounds(window: str, zone: ZoneInfo, now: datetime) -> tuple[datetime, datetime]:
    """Start and end of the calendar day, week (from Monday) or month of `now` in the zone."""
    midnight = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if window == BudgetWindow.DAY:
        return midnight, midnight + timedelta(days=1)
    if window == BudgetWindow.WEEK:
        start = midnight - timedelta(days=midnight.weekday())
        return start, start + timedelta(days=7)
    start = midnight.replace(day=1)
    return start, (start + timedelta(days=32)).replace(day=1)


def budget_spent(rule: AlertRule, now: datetime) -> int:
    """What of a budget is spent in its present window, in nano-units."""
    return _spent(rule, *window_bounds(rule.window, ZoneInfo(rule.organization.time_zone), now))


def _spent(rule: AlertRule, start: datetime, end: datetime) -> int:
    return sum(row.cost_nano for row in usage.summary(rule.organization_id, start, end, only=_scope(rule)))


def _scope(rule: AlertRule) -> usage.Only:
    return usage.Only(project_id=rule.project_id, api_key_id=rule.api_key_id)


def _currency(rule: AlertRule) -> str:
    return ledger.balance(rule.organization_id).currency


def _amount(amount_nano: int) -> str:
    """Exact decimal text, as in the management API."""
    return f"{to_decimal(amount_nano):f}"


def _budget(rule: AlertRule, now: datetime) -> bool:
    """The present window; for a while after it began also the one before, whose last calls no look has seen."""
    zone = ZoneInfo(rule.organization.time_zone)
    start, end = window_bounds(rule.window, zone, now)
    raised = False
    if now - start < LATE and rule.created_at < start:
        raised = _budget_of(rule, *window_bounds(rule.window, zone, start - timedelta(microseconds=1)))
    return _budget_of(rule, start, end) or raised


def _budget_of(rule: AlertRule, start: datetime, end: datetime) -> bool:
    assert rule.amount_nano is not None
    spent = _spent(rule, start, end)
    crossed = [threshold for threshold in rule.thresholds if spent * 100 >= threshold * rule.amount_nano]
    if not crossed:
        return False
    threshold = max(crossed)
    return _raise(
        rule,
        threshold,
        start,
        {
            "threshold_percent": threshold,
            "spent": _amount(spent),
            "budget": _amount(rule.amount_nano),
            "currency": _currency(rule),
            "window": rule.window,
            "window_start": start.isoformat(),
            "window_end": end.isoformat(),
        },
    )


def _credit(rule: AlertRule, now: datetime) -> bool:
    """Again each day while it is low."""
    assert rule.amount_nano is not None
    balance = ledger.balance(rule.organization_id, now=now)
    if balance.available_nano >= rule.amount_nano:
        return False
    start, _ = window_bounds(BudgetWindow.DAY, ZoneInfo(rule.organization.time_zone), now)
    facts = {
        "available": _amount(balance.available_nano),
        "threshold": _amount(rule.amount_nano),
        "currency": balance.currency,
    }
    return _raise(rule, 0, start, facts)


def _spend_anomaly(rule: AlertRule, now: datetime) -> bool:
    """The hour up to now against the median of the week's hours that cost anything."""
    assert rule.amount_nano is not None
    latest = _spent(rule, now - timedelta(hours=1), now)
    if latest <= rule.amount_nano:
        return False
    history = usage.summary(rule.organization_id, now - HISTORY, now - timedelta(hours=1), "hour", only=_scope(rule))
    costs = [row.cost_nano for row in history if row.cost_nano > 0]
    if len(costs) < LEAST_HOURS:
        return False
    ordinary = int(median(costs))
    (percent,) = rule.thresholds
    if latest * 100 <= ordinary * percent:
        return False
    facts = {
        "spent": _amount(latest),
        "ordinary": _amount(ordinary),
        "currency": _currency(rule),
        "threshold_percent": percent,
        "spent_from": (now - timedelta(hours=1)).isoformat(),
        "spent_until": now.isoformat(),
    }
    return _raise(rule, percent, _hour(now), facts)


def _failures(rule: AlertRule, now: datetime) -> bool:
    start = now - FAILURES_SPAN
    rows = {row.key: row.requests for row in usage.summary(rule.organization_id, start, now, "status")}
    recorded = rows.get("failed", 0)
    # Where no deployment takes calls there are no records of them; of a call that has one the answer was counted too.
    answered = sum(each.count for each in refused_since(rule.organization_id, start) if each.code in OURS)
    failed = max(recorded, answered)
    total = sum(rows.values()) - recorded + failed
    (percent,) = rule.thresholds
    if total < LEAST_CALLS or failed * 100 <= percent * total:
        return False
    facts = {"failed": failed, "calls": total, "minutes": 15, "threshold_percent": percent}
    return _raise(rule, percent, _hour(now), facts)


def _soft_limits(rule: AlertRule, now: datetime) -> bool:
    """What the gateways let through since the last look; each limit once in its window, a rate once an hour."""
    organization = rule.organization
    counts = snapshot.take_exceeded(organization.id)
    raised, currency = False, _currency(rule)
    for quota in soft_quotas(organization, counts):
        start = _hour(now)
        if quota.window in CALENDAR:
            start, _ = quota_window(quota.window, organization.time_zone, now)
        facts = {
            "limit_id": quota.id,
            "limit": limit_text(quota.kind, quota.window, quota.limit, currency),
            "limit_kind": quota.kind,
            "limit_window": quota.window,
            "limit_amount": quota.limit,
            "currency": currency,
            "calls": counts[quota.id],
            "window_start": start.isoformat(),
        }
        raised |= _raise(rule, quota.id, start, facts)
    return raised


def _hour(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0)


def _raise(rule: AlertRule, threshold: int, window_start: datetime, facts: dict[str, Any]) -> bool:
    told = {"rule_id": rule.id, "kind": rule.kind, "scope": scope_name(rule), **facts}
    return raise_alert(rule=rule, threshold=threshold, window_start=window_start, facts=told) is not None


_EVALUATE: dict[RuleKind, Callable[[AlertRule, datetime], bool]] = {
    RuleKind.BUDGET: _budget,
    RuleKind.CREDIT: _credit,
    RuleKind.SPEND_ANOMALY: _spend_anomaly,
    RuleKind.FAILURES: _failures,
    RuleKind.SOFT_LIMIT: _soft_limits,
}
