"""What an alert says, in the reader's language: its rule and its facts are kept, and the sentence is made here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.formats import date_format, get_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from billing.money import divide_half_even, parse_nano
from portal.alerts.kinds import BudgetWindow, RuleKind
from portal.alerts.models import Alert, AlertRule, WebhookDelivery
from portal.quotas.wording import limit_text
from portal.templatetags.portal import count, money_short

_BUDGETS = {
    BudgetWindow.DAY: gettext_noop("%(percent)s %% of the day's budget of %(budget)s is spent (%(scope)s)"),
    BudgetWindow.WEEK: gettext_noop("%(percent)s %% of the week's budget of %(budget)s is spent (%(scope)s)"),
    BudgetWindow.MONTH: gettext_noop("%(percent)s %% of the month's budget of %(budget)s is spent (%(scope)s)"),
}
# How the service begins to say why an attempt failed; what follows comes from the network.
_FAILURES = (gettext_noop("No connection"), gettext_noop("No answer"))
_REASONS = (
    gettext_noop("The answer took too long."),
    gettext_noop("The webhook was switched off."),
)


def scope_name(rule: AlertRule) -> str:
    if rule.project is not None:
        return _("project %(name)s") % {"name": rule.project.name}
    if rule.api_key is not None:
        return _("API key %(name)s") % {"name": rule.api_key.name}
    return _("organization")


def title_of(alert: Alert) -> str:
    """Alerts of before their facts had all that their sentence needs are told as they were then."""
    return make_title(alert.rule, alert.facts) or alert.title


def make_title(rule: AlertRule, facts: Mapping[str, Any]) -> str:
    """Empty where a fact is missing."""
    try:
        return _TITLES[RuleKind(rule.kind)](rule, facts)
    except KeyError:
        return ""


def figures_of(alert: Alert) -> list[str]:
    """What a mail tells beyond the title, a sentence each, times in the organization's zone. None where the title tells
    all of it, or the alert is of before its facts had them."""
    facts = alert.facts
    if alert.rule.kind != RuleKind.SPEND_ANOMALY or "spent_until" not in facts:
        return []
    zone = ZoneInfo(alert.organization.time_zone)
    start, end = (datetime.fromisoformat(facts[name]).astimezone(zone) for name in ("spent_from", "spent_until"))
    spent = _("Spent from %(start)s to %(end)s on %(day)s (%(zone)s): %(spent)s (%(scope)s).")
    ordinary = _(
        "An ordinary hour: %(ordinary)s, the median of the hours of the last week in which anything was spent."
    )
    return [
        spent
        % {
            "start": date_format(start, "H:i"),
            "end": date_format(end, "H:i"),
            "day": date_format(end, _("j F Y")),
            "zone": zone.key,
            "spent": _amount(facts, "spent"),
            "scope": scope_name(alert.rule),
        },
        ordinary % {"ordinary": _amount(facts, "ordinary")},
        _(
            "What to do: see under usage which model, key or project spends. Revoke a key whose calls are not yours, "
            "or set a limit."
        ),
    ]


def _amount(facts: Mapping[str, Any], name: str) -> str:
    return money_short(parse_nano(facts[name]), facts["currency"])


def _budget(rule: AlertRule, facts: Mapping[str, Any]) -> str:
    return _(_BUDGETS[BudgetWindow(rule.window)]) % {
        "percent": facts["threshold_percent"],
        "budget": _amount(facts, "budget"),
        "scope": scope_name(rule),
    }


def _credit(rule: AlertRule, facts: Mapping[str, Any]) -> str:
    return _("%(left)s of credit is left, below %(threshold)s") % {
        "left": money_short(max(0, parse_nano(facts["available"])), facts["currency"]),
        "threshold": _amount(facts, "threshold"),
    }


def _spend_anomaly(rule: AlertRule, facts: Mapping[str, Any]) -> str:
    ordinary = parse_nano(facts["ordinary"])
    tenths = divide_half_even(parse_nano(facts["spent"]) * 10, ordinary) if ordinary else 0
    return _("%(spent)s was spent in an hour, %(times)s times an ordinary hour") % {
        "spent": _amount(facts, "spent"),
        "times": f"{count(tenths // 10)}{get_format('DECIMAL_SEPARATOR')}{tenths % 10}",
    }


def _failures(rule: AlertRule, facts: Mapping[str, Any]) -> str:
    return _("%(failed)s of %(calls)s calls failed in 15 minutes") % {
        "failed": count(facts["failed"]),
        "calls": count(facts["calls"]),
    }


def _soft_limit(rule: AlertRule, facts: Mapping[str, Any]) -> str:
    limit = limit_text(facts["limit_kind"], facts["limit_window"], facts["limit_amount"], facts["currency"])
    return _("A soft limit is passed: %(limit)s") % {"limit": limit}


_TITLES: dict[RuleKind, Callable[[AlertRule, Mapping[str, Any]], str]] = {
    RuleKind.BUDGET: _budget,
    RuleKind.CREDIT: _credit,
    RuleKind.SPEND_ANOMALY: _spend_anomaly,
    RuleKind.FAILURES: _failures,
    RuleKind.SOFT_LIMIT: _soft_limit,
}


def failure_of(delivery: WebhookDelivery) -> str:
    """Why the last attempt failed; empty when it did not."""
    status, error = delivery.last_status, delivery.last_error
    if not error:
        return ""
    if status is not None:
        if 300 <= status < 400:
            return _("Answered %(status)s: redirects are not followed; give the final address.") % {"status": status}
        return _("Answered %(status)s.") % {"status": status}
    if error in _REASONS:
        return _(error)
    start, separator, rest = error.partition(": ")
    return f"{_(start)}: {rest}" if separator and start in _FAILURES else error
