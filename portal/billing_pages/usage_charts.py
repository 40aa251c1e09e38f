"""Charts of use over time: what one measures, its steps, and what it is split by, as JSON that the page draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, JsonResponse, QueryDict
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from billing.ledger import selectors as ledger
from billing.rollups import latencies
from billing.rollups.histograms import Latency
from billing.usage import selectors as usage
from portal import access
from portal.api_keys import selectors as api_keys
from portal.billing_pages import periods
from portal.billing_pages.forms import UsageOnlyForm
from portal.billing_pages.periods import Period
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization

Group = Literal["model", "api_key", "project", "end_user"]
Step = Literal["hour", "day", "month"]

METRICS = {
    "tokens": _("Tokens"),
    "spend": _("Spend"),
    "requests": _("Requests"),
    "errors": _("Errors"),
    "ttft": _("First token"),
    "latency": _("Whole call"),
}
LATENCIES = {"ttft": Latency.TTFT, "latency": Latency.E2E}
GROUPS: dict[Group, str | Promise] = {
    "model": _("Model"),
    "api_key": _("API key"),
    "project": _("Project"),
    "end_user": _("End user"),
}
STEPS: dict[Step, str | Promise] = {"hour": _("Hour"), "day": _("Day"), "month": _("Month")}
# Steps that say something over so many days, the usual one first.
STEPS_OF: dict[int, tuple[Step, ...]] = {
    1: ("hour",),
    7: ("day", "hour"),
    30: ("day", "hour", "month"),
    90: ("day", "month"),
    365: ("month", "day"),
}
# Where no period is chosen, a step brings its own.
DAYS_OF: dict[Step, int] = {"hour": 1, "day": 30, "month": 365}
SERIES_SHOWN = 4
_KEYS_IN: dict[Step, Callable[[Period], list[str]]] = {
    "hour": periods.hours_in,
    "day": periods.days_in,
    "month": periods.months_in,
}


@dataclass(frozen=True, slots=True)
class ChartQuery:
    """As an address says it; an odd value is the usual one."""

    days: int
    step: Step
    metric: str
    split: Group | None

    @classmethod
    def read(cls, query: QueryDict) -> ChartQuery:
        days = read_days(query)
        steps = STEPS_OF[days]
        return cls(
            days,
            _chosen(query.get("step"), dict.fromkeys(steps), steps[0]),
            _chosen(query.get("metric"), METRICS, "tokens"),
            _chosen(query.get("split"), GROUPS, None),
        )


@dataclass(frozen=True, slots=True)
class StepChoice:
    step: Step
    label: str | Promise
    days: int


@dataclass(frozen=True, slots=True)
class ChartCard:
    """A chart and its choices as the template prints them."""

    chosen: ChartQuery
    steps: list[StepChoice]
    metrics: Mapping[str, str | Promise]
    groups: Mapping[Group, str | Promise]
    only: str


def card(query: QueryDict, *, only: str = "") -> ChartCard:
    """Of the period that the page has chosen."""
    chosen = ChartQuery.read(query)
    steps = [StepChoice(step, label, chosen.days) for step, label in STEPS.items() if step in STEPS_OF[chosen.days]]
    return ChartCard(chosen, steps, METRICS, GROUPS, only)


def card_of_any_period(*, only: str = "") -> ChartCard:
    """Each step with a period of its own: hours of a day, days of a month, months of a year. `only` is a query that
    narrows it."""
    chosen = ChartQuery(DAYS_OF["day"], "day", "tokens", None)
    steps = [StepChoice(step, label, DAYS_OF[step]) for step, label in STEPS.items()]
    return ChartCard(chosen, steps, METRICS, GROUPS, only)


def read_days(query: QueryDict) -> int:
    days = query.get("days", "")
    return int(days) if days.isdecimal() and int(days) in periods.RANGES else periods.DEFAULT_RANGE


def _chosen(value: str | None, among: Mapping[Any, object], usual: Any) -> Any:
    return value if value in among else usual


@login_required
def chart(request: HttpRequest, slug: str) -> JsonResponse:
    """Points in the reader's zone. Gaps are zeros; of latencies, nothing."""
    member = access.member_for(request.user, slug)
    chosen = ChartQuery.read(request.GET)
    form = UsageOnlyForm(
        request.GET, organization=member.organization, projects=organizations.projects_of(member.organization)
    )
    read = _Reading(member.organization, chosen, form.only())
    keys = _KEYS_IN[chosen.step](read.period)
    series = read.series(keys)
    return JsonResponse(
        {
            "step": chosen.step,
            "metric": chosen.metric,
            "keys": keys,
            "series": [{"label": str(label), "values": values} for label, values in series],
            "note": read.note,
            "currency": ledger.balance(member.organization_id).currency,
        }
    )


Series = list[tuple[str | Promise, list[Any]]]


class _Reading:
    """One chart's reads: at most three queries."""

    def __init__(self, organization: Organization, chosen: ChartQuery, only: usage.Only) -> None:
        self.organization, self.chosen, self.only = organization, chosen, only
        self.period = periods.last_days(chosen.days)
        self.zone = timezone.get_current_timezone_name()
        # What a reader has to know of the series, once they are read.
        self.note = ""

    def series(self, keys: list[str]) -> Series:
        if self.chosen.metric in LATENCIES:
            return self._latencies(keys)
        if self.chosen.split:
            return self._split_sums(keys)
        return self._sums(keys)

    def _sums(self, keys: list[str]) -> Series:
        if self.chosen.metric == "errors":
            ended = self._over_time("ending", ["failed", "cancelled"])
            return [
                (label, [_value("requests", ended[status].get(key)) for key in keys])
                for status, label in (("failed", _("Failed")), ("cancelled", _("Cancelled")))
            ]
        sums = self._over_time("total", [""])[""]
        if self.chosen.metric == "tokens":
            kinds = {"input": _("Input"), "cached": _("Cached input"), "output": _("Output")}
            return [(label, [_value(kind, sums.get(key)) for key in keys]) for kind, label in kinds.items()]
        return [(METRICS[self.chosen.metric], [_value(self.chosen.metric, sums.get(key)) for key in keys])]

    def _split_sums(self, keys: list[str]) -> Series:
        """The largest groups, and all others in one."""
        assert self.chosen.split
        largest = self._largest()
        found = self._over_time(self.chosen.split, largest.keys)
        labels = labels_of(self.organization, self.chosen.split, largest.keys)
        groups: list[tuple[str, dict[str, usage.UsageSum]]] = [(labels[key], found[key]) for key in largest.keys]
        if None in found:
            groups.append((others(largest.rest_count), found[None]))
        return [(label, [_value(self.chosen.metric, sums.get(key)) for key in keys]) for label, sums in groups]

    def _latencies(self, keys: list[str]) -> Series:
        """The median and the 95th percentile; of groups, the 95th alone."""
        kind = LATENCIES[self.chosen.metric]
        group_keys = self._largest().keys if self.chosen.split else [""]
        found = latencies.over_time(
            self.organization.id,
            *self.period,
            self.chosen.step,
            group_by=self.chosen.split or "total",
            keys=group_keys,
            time_zone=self.zone,
            only=self.only,
            kinds=(kind,),
        )

        if found.since is not None:
            self.note = _now("Of the newest %(count)s completed calls, from %(since)s on.") % {
                "count": number_format(latencies.RECORDS_READ, force_grouping=True),
                "since": date_format(timezone.localtime(found.since), "SHORT_DATETIME_FORMAT"),
            }

        def values(group: str, place: int) -> list[float | None]:
            steps = found.groups[group][kind]
            return [steps.get(key, latencies.NOTHING)[place] for key in keys]

        if not self.chosen.split:
            return [(f"p{percent}", values("", place)) for place, percent in enumerate(latencies.PERCENTS)]
        labels = labels_of(self.organization, self.chosen.split, group_keys)
        return [(f"{labels[key]} p{latencies.PERCENTS[-1]}", values(key, -1)) for key in group_keys]

    def _largest(self) -> usage.Leaders:
        assert self.chosen.split
        only = self._counted
        return usage.leaders(self.organization.id, *self.period, self.chosen.split, limit=SERIES_SHOWN, only=only)

    def _over_time(self, group: str, keys: list[str]) -> dict[str | None, dict[str, usage.UsageSum]]:
        return usage.over_time(
            self.organization.id,
            *self.period,
            self.chosen.step,
            group_by=group,
            keys=keys,
            time_zone=self.zone,
            only=self._counted,
        )

    @property
    def _counted(self) -> usage.Only:
        return (
            replace(self.only, statuses=("failed",))
            if self.chosen.metric == "errors" and self.chosen.split
            else self.only
        )


def _value(kind: str, sums: usage.UsageSum | None) -> int | float:
    """One bar's part. A chart's height may be a float: money itself is printed from whole nano-units elsewhere."""
    if sums is None:
        return 0
    values = {
        "input": sums.prompt_tokens - sums.cached_tokens,
        "cached": sums.cached_tokens,
        "output": sums.completion_tokens,
        "tokens": sums.prompt_tokens + sums.completion_tokens,
        "requests": sums.requests,
        "errors": sums.requests,
        "spend": sums.cost_nano / 1e9,
    }
    return values[kind]


def labels_of(organization: Organization, group: Group, keys: list[str]) -> dict[str, str]:
    """What groups are called, by key: of a key that was removed, its number."""
    names: dict[str, str] = {}
    if group == "api_key":
        found = api_keys.names_by_id(organization.id, (int(key) for key in keys if key))
        names = {str(key_id): name for key_id, name in found.items()}
    elif group == "project":
        names = {str(project.id): project.name for project in organizations.projects_of(organization)}
    return {key: names.get(key, key) or _now("none") for key in keys}


def others(count: int) -> str:
    return ngettext("%(count)d other", "%(count)d others", count) % {"count": count}
