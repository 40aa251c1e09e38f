"""What the operator's pages and paths both show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.core.cache import cache
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing.invoices.models import Invoice
from billing.invoices.periods import month
from billing.invoices.runs import Outcome
from billing.pricing import selectors as pricing
from billing.pricing.models import Discount
from billing.pricing.selectors import PriceInfo
from billing.reconciliation import comparison
from billing.reconciliation import selectors as reconciliation
from billing.reconciliation.comparison import Comparison, Repair
from billing.reconciliation.periods import find_close
from billing.reconciliation.selectors import Counts, DayRate, Mismatch, OrganizationRate
from billing.rollups import service
from billing.rollups.models import DAY_S, HOUR_S
from billing.rollups.service import ServiceFilters
from billing.usage import retention
from billing.usage import selectors as usage
from portal.catalog import selectors as catalog
from portal.operations.services import MINUTE_S, floor
from portal.operations.thresholds import FAILED_SHARE
from portal.operator.models import InvoiceRun, RunOutcome
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization

RECONCILIATION_DAYS = 14
ORGANIZATIONS_SHOWN = 50
RECENT = timedelta(minutes=15)
# Every record of the old months is read for it.
RETENTION_KEPT_S = 60


@dataclass(frozen=True, slots=True)
class Overview:
    """Of the service. Calls and mismatches are those of the last seven days; `recent` calls of a quarter of an hour."""

    organization_count: int
    recent_calls: int
    recent_failed: int
    calls: int
    mismatches: int
    held_nano: int

    @property
    def is_failing(self) -> bool:
        """Where the alert CallsFail would be raised, were it to last."""
        return self.recent_failed > FAILED_SHARE * self.recent_calls


def overview(now: datetime) -> Overview:
    week_ago = now - timedelta(days=7)
    week = service.over_time(ServiceFilters(), floor(week_ago, HOUR_S), now, grain_s=HOUR_S, step_s=7 * DAY_S)
    recent = service.total(ServiceFilters(), floor(now - RECENT, MINUTE_S), now, grain_s=MINUTE_S)
    return Overview(
        organization_count=Organization.objects.count(),
        recent_calls=recent.requests,
        recent_failed=sum(recent.failed.values()),
        calls=sum(sums.requests for sums in week.values()),
        mismatches=sum(rate.unmatched for rate in reconciliation.day_rates(reconciliation.read_period(week_ago, now))),
        held_nano=usage.total_hold_nano(),
    )


# Prices ---------------------------------------------------------------------------------------------


def _with_organizations(versions: list[PriceInfo]) -> list[tuple[PriceInfo, Organization]]:
    by_id = organizations.organizations_by_id([version.organization_id or 0 for version in versions])
    return [(version, by_id[version.organization_id or 0]) for version in versions]


def overrides(model_name: str) -> list[tuple[PriceInfo, Organization]]:
    """Versions of the model's price that are one organization's, with whose."""
    return _with_organizations(pricing.overrides(model_name))


def agreed_prices(now: datetime) -> list[tuple[PriceInfo, Organization]]:
    """Prices of single organizations that are in force or will be, discounts left out."""
    versions = [version for model in catalog.all_models() for version in pricing.overrides(model.name)]
    return _with_organizations(
        [
            version
            for version in versions
            if not version.discount_basis_points and (version.effective_until is None or version.effective_until > now)
        ]
    )


def discounts() -> list[tuple[Discount, Organization]]:
    """All that were given, with whose."""
    rows = pricing.discounts()
    by_id = organizations.organizations_by_id(sorted({row.organization_id for row in rows}))
    return [(row, by_id[row.organization_id]) for row in rows]


# Invoices -------------------------------------------------------------------------------------------


def invoice_runs() -> QuerySet[InvoiceRun]:
    return InvoiceRun.objects.select_related("started_by")


def was_issued_before_close(invoice: Invoice) -> bool:
    """Whether it was issued while its month could still change in reconciliation."""
    close = find_close(invoice.period)
    return invoice.finalized_at is not None and (close is None or close.closed_at > invoice.finalized_at)


# Reconciliation and retention -----------------------------------------------------------------------


# By class, as the page calls it.
MISMATCH_LABELS = {
    "pending": _("Pending"),
    "differ": _("Differ"),
    "unfinished": _("One account"),
    "engine_only": _("Engine only"),
    "gateway_only": _("Gateway only"),
}


REPAIR_LABELS: dict[Repair, str | Promise] = {
    Repair.ADJUSTED: _("The record was corrected by an entry of its own."),
    Repair.FINISHED: _("The gateway never finished the call; its record was finished from the receipt."),
    Repair.RECORDED: _("There was no record, and no byte had left: one that costs nothing was made from the receipt."),
}
# What is missing where nothing was repaired.
OPEN_LABELS: dict[str, str | Promise] = {
    "pending": _("The gateway may still finish the call; it is judged when its time is over."),
    "gateway_only": _("No receipt has come; the record stands as the gateway wrote it."),
    "engine_only": _("The engine names a tenant that is no organization of ours, so nobody can be billed."),
}


@dataclass(frozen=True, slots=True)
class MismatchRow:
    """A call whose accounts did not agree by themselves: both, the class in words, and what was done."""

    mismatch: Mismatch
    label: str | Promise
    organization: Organization | None
    comparison: Comparison | None

    @property
    def explanation(self) -> str | Promise:
        if self.comparison is not None and self.comparison.repair in REPAIR_LABELS:
            return REPAIR_LABELS[self.comparison.repair]
        return OPEN_LABELS.get(self.mismatch.match_class, "")


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The last days, newest first, and all of them together: calls that reached an engine."""

    days: list[DayRate]
    differing: list[tuple[OrganizationRate, Organization | None]]
    mismatches: list[Mismatch]
    all: Counts


def reconciled(now: datetime) -> Reconciled:
    # From a whole hour, so that the rollups have it.
    start = (now - timedelta(days=RECONCILIATION_DAYS)).replace(minute=0, second=0, microsecond=0)
    period = reconciliation.read_period(start, now)
    days = reconciliation.day_rates(period)
    differing = reconciliation.organization_rates(period, limit=ORGANIZATIONS_SHOWN)
    by_id = organizations.organizations_by_id(
        sorted(rate.organization_id for rate in differing if rate.organization_id)
    )
    return Reconciled(
        days=list(reversed(days)),
        differing=[(rate, by_id.get(rate.organization_id or 0)) for rate in differing],
        mismatches=reconciliation.mismatches(period, now=now),
        all=reconciliation.together(days),
    )


def mismatch_rows(mismatches: Sequence[Mismatch]) -> list[MismatchRow]:
    """With both accounts of each."""
    ids = {row.organization_id for row in mismatches if row.organization_id}
    by_id = organizations.organizations_by_id(sorted(ids))
    compared = comparison.compare([row.request_id for row in mismatches])
    return [
        MismatchRow(
            row, MISMATCH_LABELS[row.match_class], by_id.get(row.organization_id or 0), compared.get(row.request_id)
        )
        for row in mismatches
    ]


def compared_call(request_id: UUID, now: datetime) -> MismatchRow | None:
    """Both accounts of one call, whether they agree or not; None where neither is there."""
    found = comparison.compare([request_id]).get(request_id)
    if found is None:
        return None
    mismatch = Mismatch(request_id, found.organization_id, found.match_class, found.is_settled, now - found.started_at)
    by_id = organizations.organizations_by_id([found.organization_id or 0])
    return MismatchRow(
        mismatch, MISMATCH_LABELS.get(found.match_class, _("Equal")), by_id.get(found.organization_id or 0), found
    )


# In the words of the page, in the order in which it counts them.
OUTCOME_LABELS: dict[str, str | Promise] = {
    Outcome.FINALIZED: _("Issued"),
    Outcome.DRAFTED: _("Drafted"),
    Outcome.ALREADY_FINAL: _("Issued before"),
    Outcome.EMPTY: _("Nothing to bill"),
    Outcome.STILL_OPEN: _("Month not over there"),
    Outcome.WAITING: _("Held until the close"),
    Outcome.FAILED: _("Failed"),
}


@dataclass(frozen=True, slots=True)
class OutcomePage:
    """`next` is the organization behind which the next page begins; None at the end. `ends`: when the month is over, by
    the time zones of the rows' accounts."""

    rows: list[RunOutcome]
    next: int | None
    ends: dict[str, datetime]


def outcome_page(
    run: InvoiceRun, *, outcome: str = "", search: str = "", after: int | None = None, limit: int
) -> OutcomePage:
    """What the run did with each account, in its own order; `search` is part of a name or slug. One query."""
    found = RunOutcome.objects.filter(run=run).order_by("organization_id")
    found = found.select_related("organization__billing_account", "invoice")
    if outcome:
        found = found.filter(outcome=outcome)
    if search:
        found = found.filter(Q(organization__name__icontains=search) | Q(organization__slug__icontains=search))
    if after is not None:
        found = found.filter(organization_id__gt=after)
    rows = list(found[: limit + 1])
    zones = {row.organization.billing_account.time_zone for row in rows}
    return OutcomePage(
        rows[:limit],
        rows[limit - 1].organization_id if len(rows) > limit else None,
        {zone: month(run.period, zone).end for zone in zones},
    )


@dataclass(frozen=True, slots=True)
class OutcomeCount:
    """How many accounts a run gave this outcome, with its words."""

    outcome: str
    label: str | Promise
    count: int


def outcome_counts(run: InvoiceRun) -> list[OutcomeCount]:
    """Those that occur in the kind of run that it is; without a query."""
    counts = {name: run.outcome.get("failed_count" if name == Outcome.FAILED else name, 0) for name in OUTCOME_LABELS}
    usual = {Outcome.DRAFTED if run.is_preview else Outcome.FINALIZED, Outcome.EMPTY, Outcome.FAILED}
    return [OutcomeCount(name, OUTCOME_LABELS[name], count) for name, count in counts.items() if count or name in usual]


def old_partitions() -> list[retention.Partition]:
    """Months of usage records that would go, and what keeps each; looked at once a minute."""
    found = cache.get_or_set(
        "operator:retention", lambda: retention.old_partitions(now=timezone.now()), RETENTION_KEPT_S
    )
    return list(found or ())
