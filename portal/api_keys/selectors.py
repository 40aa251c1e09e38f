"""Reads of API keys and management keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from django.db.models import F, QuerySet
from django.utils import timezone

from portal.api_keys.models import ApiKey, ManagementKey, Purpose, RetiredSecret
from portal.client_address import Network, parse_network
from portal.organizations.models import Organization


@dataclass(frozen=True)
class ActiveKey:
    """What a gateway knows of a key. Empty tuples allow all routes, models or networks."""

    api_key_id: int
    name: str
    prefix: str
    organization_id: int
    project_id: int
    expires_at: datetime | None
    organization_slug: str
    organization_suspended: bool
    created_by_id: int | None
    project_archived: bool = False
    allowed_routes: tuple[str, ...] = ()
    allowed_models: tuple[str, ...] = ()
    allowed_networks: tuple[str, ...] = ()
    # Of the organization; empty allows none.
    allowed_origins: tuple[str, ...] = ()
    keeps_responses: bool = False

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        return tuple(parse_network(text) for text in self.allowed_networks)


def find_active(digest: str) -> ActiveKey | None:
    """The unrevoked key with this secret, or None. The caller compares `expires_at` with its clock.

    One query for a key's present secret; a second one finds a secret that a rotation replaced and that still works, and
    then `expires_at` is the end of the overlap if that comes first.
    """
    found = _find(digest=digest)
    if found is not None:
        return found
    retired = RetiredSecret.objects.filter(digest=digest, works_until__gt=timezone.now()).first()
    if retired is None:
        return None
    key = _find(id=retired.api_key_id)
    if key is None:
        return None
    return replace(key, expires_at=min(filter(None, (key.expires_at, retired.works_until))))


def _find(**which: object) -> ActiveKey | None:
    key = (
        ApiKey.objects.filter(**which, revoked_at=None)
        .select_related("organization", "project")
        .only(
            "id",
            "name",
            "prefix",
            "organization_id",
            "project_id",
            "expires_at",
            "created_by_id",
            "allowed_routes",
            "allowed_models",
            "allowed_networks",
            "project__archived_at",
            "organization__slug",
            "organization__allowed_origins",
            "organization__keeps_responses",
            "organization__suspended_at",
            "organization__deletes_at",
        )
        .first()
    )
    if key is None:
        return None
    return ActiveKey(
        api_key_id=key.id,
        name=key.name,
        prefix=key.prefix,
        organization_id=key.organization_id,
        project_id=key.project_id,
        expires_at=key.expires_at,
        organization_slug=key.organization.slug,
        organization_suspended=key.organization.is_refused,
        created_by_id=key.created_by_id,
        project_archived=key.project.is_archived,
        allowed_routes=tuple(key.allowed_routes),
        allowed_models=tuple(key.allowed_models),
        allowed_networks=tuple(key.allowed_networks),
        allowed_origins=tuple(key.organization.allowed_origins),
        keeps_responses=key.organization.keeps_responses,
    )


def find_management_key(digest: str) -> ManagementKey | None:
    """The unrevoked management key with this secret, its maker and organization in the same query."""
    return (
        ManagementKey.objects.filter(digest=digest, revoked_at=None, created_by__is_active=True)
        .select_related("created_by", "organization")
        .first()
    )


def client_keys(organization: Organization) -> QuerySet[ApiKey]:
    """Every key that people made, newest first, revoked ones included; project and maker come in the same query."""
    return (
        ApiKey.objects.filter(organization=organization, purpose=Purpose.CLIENT)
        .select_related("project", "created_by")
        .order_by("-id")
    )


def management_keys(organization: Organization) -> QuerySet[ManagementKey]:
    """Newest first, revoked ones last; the maker comes in the same query."""
    found = ManagementKey.objects.filter(organization=organization).select_related("created_by")
    return found.order_by(F("revoked_at").desc(nulls_first=True), "-id")


def retired_secrets(api_key: ApiKey) -> list[RetiredSecret]:
    """The secrets that rotations replaced, newest first."""
    return list(RetiredSecret.objects.filter(api_key=api_key).order_by("-id"))


def names_by_id(organization_id: int, ids: Iterable[int | None]) -> dict[int, str]:
    """Names of the keys with these ids, those of other organizations left out. One query."""
    wanted = {key_id for key_id in ids if key_id is not None}
    return dict(ApiKey.objects.filter(organization_id=organization_id, id__in=wanted).values_list("id", "name"))


def newest_names(organization: Organization, limit: int) -> list[tuple[int, str]]:
    """For a list to choose from, which thousands of keys would make unusable."""
    return list(ApiKey.objects.filter(organization=organization).order_by("-id").values_list("id", "name")[:limit])
