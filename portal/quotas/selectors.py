"""Reads of limits."""

from __future__ import annotations

from django.db.models import F

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
