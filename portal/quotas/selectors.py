"""Reads of limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from django.db.models import F, Q, QuerySet

from portal.api_keys.models import ApiKey
from portal.organizations.models import Organization
from portal.quotas.models import Mode, Quota

IDS_AT_ONCE = 500


def quotas_of(organization: Organization) -> QuerySet[Quota]:
    """The organization's first, then those of members, keys and projects, in one query.

    There may be one for each of very many keys: narrow it, or read a page of it.
    """
    return (
        Quota.objects.filter(organization=organization)
        .select_related("project", "api_key", "member__user")
        .order_by(
            F("project__name").asc(nulls_first=True),
            F("api_key__name").asc(nulls_first=True),
            F("member__user__email").asc(nulls_first=True),
            "model",
            "kind",
            "window",
        )
    )


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """One page of limits of keys, newest first; `next` is the `after` of the older page, None on the last."""

    rows: list[Quota]
    next: int | None


def limits_of_keys(organization: Organization, *, search: str = "", after: int | None = None, limit: int) -> KeyLimits:
    """Those of keys that have `search` in their name, or whose secret begins with it; one query."""
    found = quotas_of(organization).filter(api_key__isnull=False).order_by("-id")
    if search:
        # The organization once more, for PostgreSQL finds its keys by that.
        found = found.filter(
            Q(api_key__name__icontains=search) | Q(api_key__prefix__startswith=search.rstrip("…")),
            api_key__organization=organization,
        )
    if after is not None:
        found = found.filter(id__lt=after)
    rows = list(found[: limit + 1])
    return KeyLimits(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)


def soft_quotas(organization: Organization, ids: Collection[int]) -> Iterator[Quota]:
    """Those of the organization among `ids` that are soft, by id; one query for each `IDS_AT_ONCE`."""
    wanted = sorted(ids)
    for start in range(0, len(wanted), IDS_AT_ONCE):
        some = wanted[start : start + IDS_AT_ONCE]
        yield from Quota.objects.filter(organization=organization, mode=Mode.SOFT, id__in=some).order_by("id")


def quotas_of_everything(organization: Organization, limit: int) -> list[Quota]:
    """Those that every call of the organization comes under, at most `limit`, in one query."""
    found = Quota.objects.filter(organization=organization, project=None, api_key=None, member=None, model="")
    return list(found.order_by("kind", "window")[:limit])


def quotas_of_key(api_key: ApiKey) -> list[Quota]:
    """Those of the key alone, in one query."""
    return list(Quota.objects.filter(api_key=api_key).order_by("model", "kind", "window"))
