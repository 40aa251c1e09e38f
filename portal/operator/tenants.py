"""The operator's list of organizations: which, in which order, and what each spent this month."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery, TextChoices, Value
from django.db.models.functions import Coalesce, Lower
from django.utils.translation import gettext_lazy as _

from billing.rollups.models import MonthRollup
from billing.usage.partitions import month_starts
from portal.organizations.models import Organization
from portal.organizations.selectors import search_organizations


class State(TextChoices):
    """Each organization is in one: the last of these that is true of it."""

    ACTIVE = "active", _("Active")
    SUSPENDED = "suspended", _("Suspended")
    CLOSING = "closing", _("Being deleted")
    CLOSED = "closed", _("Closed")


class Order(TextChoices):
    NEWEST = "newest", _("Newest first")
    SPENT = "spent", _("Highest spend this month")
    NAME = "name", _("Name")


_IN_STATE: dict[State, dict[str, Any]] = {
    State.ACTIVE: {"suspended_at": None, "deletes_at": None, "closed_at": None},
    State.SUSPENDED: {"suspended_at__isnull": False, "deletes_at": None, "closed_at": None},
    State.CLOSING: {"deletes_at__isnull": False, "closed_at": None},
    State.CLOSED: {"closed_at__isnull": False},
}


def state_of(organization: Organization) -> State:
    if organization.closed_at:
        return State.CLOSED
    if organization.deletes_at:
        return State.CLOSING
    return State.SUSPENDED if organization.is_suspended else State.ACTIVE


@dataclass(frozen=True, slots=True)
class TenantFilters:
    """Empty means all. `search` is part of a name, a slug or a member's address."""

    search: str = ""
    state: str = ""
    order: str = Order.NEWEST.value


def month_start(now: datetime) -> datetime:
    """Of the month in UTC, as its spend is rolled up."""
    return month_starts(now, 0)[0]


def tenants(filters: TenantFilters, *, now: datetime) -> QuerySet[Organization]:
    """With the number of members, to be cut into pages. Spend of several currencies is ordered by the bare figure."""
    found = search_organizations(filters.search)
    if filters.state:
        found = found.filter(**_IN_STATE[State(filters.state)])
    if filters.order == Order.NAME:
        return found.annotate(key=Lower("name")).order_by("key", "id")
    if filters.order == Order.SPENT:
        return found.annotate(key=_spent(now)).order_by("-key", "-id")
    return found


def tenants_after(
    filters: TenantFilters, *, after: int | None, limit: int, now: datetime
) -> tuple[list[Organization], int | None]:
    """So many behind the organization of this id in the order asked for, and the id to go on behind, if there are more.

    By spend, who spends while pages are turned may be met twice or not at all.
    """
    found = tenants(filters, now=now)
    if after is not None:
        found = found.filter(_behind(filters, after, now))
    rows = list(found[: limit + 1])
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def _behind(filters: TenantFilters, after: int, now: datetime) -> Q:
    """Of what `tenants` orders by: its `key`, then the id; newest first by the id alone."""
    last = Organization.objects.filter(id=after)
    if filters.order == Order.NAME:
        name = Subquery(last.values_list(Lower("name")))
        return Q(key__gt=name) | Q(key=name, id__gt=after)
    if filters.order == Order.SPENT:
        spent = Subquery(last.values_list(_spent(now)))
        return Q(key__lt=spent) | Q(key=spent, id__lt=after)
    return Q(id__lt=after)


def _spent(now: datetime) -> Coalesce:
    of_month = MonthRollup.objects.filter(start=month_start(now), organization_id=OuterRef("id"))
    return Coalesce(Subquery(of_month.values("cost_nano")), Value(0))


def spent_this_month(organization_ids: Iterable[int], *, now: datetime) -> dict[int, int]:
    """Nano-units by organization, some seconds behind; those without a call are not there. One query."""
    rows = MonthRollup.objects.filter(start=month_start(now), organization_id__in=list(organization_ids))
    return dict(rows.values_list("organization_id", "cost_nano"))
