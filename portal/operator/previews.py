"""What prices, tiers and discounts would have made of last month's calls, before they are set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone

from billing.pricing import preview
from billing.pricing import selectors as pricing
from billing.pricing.preview import Change, Preview, TierChange
from billing.pricing.selectors import Tier
from billing.pricing.services import Figures, ordered_tiers
from billing.pricing.volume import month_before
from portal.catalog.models import Model
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization

# Organizations shown in a preview.
ROWS = 20


def last_month() -> tuple[datetime, datetime]:
    """[start, end), in UTC."""
    this = timezone.now().astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return month_before(this), this


@dataclass(frozen=True, slots=True)
class PricePreview:
    """`rows` are those of the organizations that it would move most."""

    sum: Preview
    currency: str
    rows: list[tuple[Change, Organization]]

    @property
    def others(self) -> int:
        return len(self.sum.changes) - len(self.rows)


def of_price(model: Model, figures: Figures, *, organization: Organization | None, currency: str) -> PricePreview:
    """`currency` is that of the list price; one organization's price is in its own."""
    start, end = last_month()
    if organization is not None:
        currency = pricing.currency_of(organization.id)
    currency = currency or pricing.currency_of(None)
    found = preview.preview_price(
        model=model.name,
        figures=figures,
        start=start,
        end=end,
        organization_id=organization.id if organization else None,
        currency=currency,
    )
    by_id = organizations.organizations_by_id([change.organization_id for change in found.changes[:ROWS]])
    rows = [(change, by_id[change.organization_id]) for change in found.changes[:ROWS]]
    return PricePreview(found, currency, rows)


@dataclass(frozen=True, slots=True)
class TiersPreview:
    rows: list[tuple[TierChange, Organization]]
    others: int
    billed_nano: int
    proposed_nano: int


def of_tiers(tiers: Sequence[Tier]) -> TiersPreview:
    """Raises InvalidPrice."""
    start, end = last_month()
    found = preview.preview_tiers(tiers=ordered_tiers(tiers), start=start, end=end, now=timezone.now())
    by_id = organizations.organizations_by_id([row.change.organization_id for row in found[:ROWS]])
    return TiersPreview(
        rows=[(row, by_id[row.change.organization_id]) for row in found[:ROWS]],
        others=max(0, len(found) - ROWS),
        billed_nano=sum(row.change.billed_nano for row in found),
        proposed_nano=sum(row.change.proposed_nano for row in found),
    )


def of_discount(*, organization: Organization, model: Model | None, basis_points: int) -> Change:
    start, end = last_month()
    return preview.preview_discount(
        organization_id=organization.id,
        basis_points=basis_points,
        start=start,
        end=end,
        now=timezone.now(),
        model=model.name if model else "",
    )
