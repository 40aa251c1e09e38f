"""Reads of API keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from portal.api_keys.models import ApiKey, Purpose
from portal.organizations.models import Organization


@dataclass(frozen=True, slots=True)
class ActiveKey:
    api_key_id: int
    name: str
    prefix: str
    organization_id: int
    project_id: int
    expires_at: datetime | None
    organization_slug: str
    organization_suspended: bool


def find_active(digest: str) -> ActiveKey | None:
    """The unrevoked key with this digest, or None. One query. The caller compares `expires_at` with its clock."""
    row = (
        ApiKey.objects.filter(digest=digest, revoked_at=None)
        .values_list(
            "id",
            "name",
            "prefix",
            "organization_id",
            "project_id",
            "expires_at",
            "organization__slug",
            "organization__suspended_at",
        )
        .first()
    )
    return None if row is None else ActiveKey(*row[:7], row[7] is not None)


def client_keys(organization: Organization) -> QuerySet[ApiKey]:
    """Every key that people made, newest first, revoked ones included; project and maker come in the same query."""
    return (
        ApiKey.objects.filter(organization=organization, purpose=Purpose.CLIENT)
        .select_related("project", "created_by")
        .order_by("-id")
    )


def names_by_id(organization_id: int, ids: Iterable[int | None]) -> dict[int, str]:
    """Names of the keys with these ids, those of other organizations left out. One query."""
    wanted = {key_id for key_id in ids if key_id is not None}
    return dict(ApiKey.objects.filter(organization_id=organization_id, id__in=wanted).values_list("id", "name"))


def newest_names(organization: Organization, limit: int) -> list[tuple[int, str]]:
    """For a list to choose from, which thousands of keys would make unusable."""
    return list(ApiKey.objects.filter(organization=organization).order_by("-id").values_list("id", "name")[:limit])
