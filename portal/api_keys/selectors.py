"""Reads of API keys and management keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from django.db import connection
from django.db.models import F, QuerySet
from django.utils import timezone

from portal.api_keys.models import ApiKey, ManagementKey, Purpose, RetiredSecret
from portal.client_address import Network, parse_network
from portal.organizations.models import Organization
from portal.quotas.snapshot import QuotaLimit


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
    # Of the key alone, in the order in which they were made.
    limits: tuple[QuotaLimit, ...] = ()

    @cached_property
    def networks(self) -> tuple[Network, ...]:
        return tuple(parse_network(text) for text in self.allowed_networks)


# At a key's first call, so it is not left to the ORM, which takes four times the CPU to ask for less.
_ACTIVE_KEY = """
    WITH secret AS (
        SELECT id AS api_key_id, NULL::timestamptz AS works_until FROM portal_apikey WHERE digest = %(digest)s
        UNION ALL
        SELECT api_key_id, works_until FROM portal_retiredsecret WHERE digest = %(digest)s AND works_until > %(now)s
    )
    SELECT k.id, k.name, k.prefix, k.organization_id, k.project_id, LEAST(k.expires_at, secret.works_until), o.slug,
           o.suspended_at IS NOT NULL OR o.deletes_at IS NOT NULL, k.created_by_id, p.archived_at IS NOT NULL,
           k.allowed_routes, k.allowed_models, k.allowed_networks, o.allowed_origins, o.keeps_responses,
           ARRAY(
               SELECT json_build_array(q.id, q.model, q.mode, q.kind, q."window", q."limit")
               FROM portal_quota AS q WHERE q.api_key_id = k.id ORDER BY q.id
           )
    FROM secret
    JOIN portal_apikey AS k ON k.id = secret.api_key_id
    JOIN portal_project AS p ON p.id = k.project_id
    JOIN portal_organization AS o ON o.id = k.organization_id
    WHERE k.revoked_at IS NULL
"""


def find_active(digest: str) -> ActiveKey | None:
    """The unrevoked key with this secret, or None; its rules and limits in the same query. The caller compares
    `expires_at` with its clock.

    A secret that a rotation replaced and that still works finds its key, too; then `expires_at` is the end of the
    overlap if that comes first.
    """
    with connection.cursor() as cursor:
        cursor.execute(_ACTIVE_KEY, {"digest": digest, "now": timezone.now()})
        row = cursor.fetchone()
    if row is None:
        return None
    *facts, routes, models, networks, origins, keeps_responses, limits = row
    key_id, name, *_ = facts
    facts += [tuple(names) for names in (routes, models, networks, origins)]
    facts += keeps_responses, tuple(QuotaLimit(number, "api_key", key_id, name, *limit) for number, *limit in limits)
    return ActiveKey(*facts)


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
