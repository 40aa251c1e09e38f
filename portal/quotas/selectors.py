"""Reads of limits."""

from __future__ import annotations

from django.db.models import F

from portal.api_keys.models import ApiKey
from portal.organizations.models import Organization
from portal.quotas.models import Quota


def quotas_of(organization: Organization) -> list[Quota]:
    """The organization's first, then those of projects, keys and members, in one query."""
    return list(
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


def quotas_of_everything(organization: Organization, limit: int) -> list[Quota]:
    """Those that every call of the organization comes under, at most `limit`, in one query."""
    found = Quota.objects.filter(organization=organization, project=None, api_key=None, member=None, model="")
    return list(found.order_by("kind", "window")[:limit])


def quotas_of_key(api_key: ApiKey) -> list[Quota]:
    """Those of the key alone, in one query."""
    return list(Quota.objects.filter(api_key=api_key).order_by("model", "kind", "window"))
