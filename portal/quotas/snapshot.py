"""The Valkey form of an organization's limits, which the gateways keep; and two announcements.

- hash `limits:{organization_id}`: fields `version`, `suspended` (0 or 1), `time_zone`, `quotas` (JSON list): those of
  the organization, its projects and members. A key's own, of which there may be as many as keys, are not in it: the
  gateways read them with the key (portal/api_keys/selectors.py).
- hash `exceeded:{organization_id}`: quota id -> calls that a soft limit let through since alerts were last raised.
- channel `limits:changed`: the organization's id, after a publish.
- channel `keys:revoked`: a key's digest, after a revoke or a change of its rules or limits.

PostgreSQL owns the truth: a lost hash is read as absent and published again, and beat re-publishes all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import redis
from django.conf import settings
from django.db.models import QuerySet

from portal.organizations.models import Organization
from portal.quotas.models import Quota

# Readers refuse another version than theirs and read the database's form again.
VERSION = 4
KEYS_REVOKED = "keys:revoked"
LIMITS_CHANGED = "limits:changed"

Scope = Literal["organization", "project", "api_key", "member"]


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """One quota. `scope_id` is the id of the organization, project, key or, for a member, the user; `scope_name` is
    what a refusal calls it; spend limits are nano-units. An imposed one is the operator's, from a limit template."""

    id: int
    scope: Scope
    scope_id: int
    scope_name: str
    model: str
    mode: str
    kind: str
    window: str
    limit: int
    is_imposed: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Of an organization, its projects and members."""

    organization_id: int
    is_suspended: bool
    time_zone: str
    quotas: tuple[QuotaLimit, ...]


@cache
def client() -> redis.Redis:
    return redis.Redis.from_url(settings.VALKEY_URL, decode_responses=True, socket_timeout=5, socket_connect_timeout=5)


def key(organization_id: int) -> str:
    return f"limits:{organization_id}"


def load(organization_id: int) -> Limits:
    """The limits as PostgreSQL has them. Two queries."""
    return _limits(_organizations().get(id=organization_id), _quotas().filter(organization_id=organization_id))


def _organizations() -> QuerySet[Organization]:
    return Organization.objects.only("suspended_at", "deletes_at", "time_zone")


def _quotas() -> QuerySet[Quota]:
    return Quota.objects.filter(api_key=None).select_related("project", "member__user").order_by("id")


def _limits(organization: Organization, quotas: Iterable[Quota]) -> Limits:
    return Limits(
        organization_id=organization.id,
        is_suspended=organization.is_refused,
        time_zone=organization.time_zone,
        quotas=tuple(as_limit(quota) for quota in quotas),
    )


def as_limit(quota: Quota) -> QuotaLimit:
    scope: Scope = "organization"
    scope_id, scope_name = quota.organization_id, ""
    if quota.project is not None:
        scope, scope_id, scope_name = "project", quota.project.id, quota.project.name
    elif quota.api_key is not None:
        scope, scope_id, scope_name = "api_key", quota.api_key.id, quota.api_key.name
    elif quota.member is not None:
        scope, scope_id, scope_name = "member", quota.member.user_id, quota.member.user.email
    return QuotaLimit(
        quota.id,
        scope,
        scope_id,
        scope_name,
        quota.model,
        quota.mode,
        quota.kind,
        quota.window,
        quota.limit,
        quota.is_imposed,
    )


def new_limit(organization: Organization, *, reason: str = "", **fields: Any) -> QuotaLimit:
    """A limit that is not set, from what `change_quota` takes."""
    return as_limit(Quota(id=0, organization=organization, **fields))


def encode(limits: Limits) -> dict[str, str]:
    return {
        "version": str(VERSION),
        "suspended": str(int(limits.is_suspended)),
        "time_zone": limits.time_zone,
        "quotas": json.dumps([asdict(quota) for quota in limits.quotas], separators=(",", ":")),
    }


def decode(organization_id: int, fields: Mapping[str, str]) -> Limits | None:
    """None when the hash is absent or of another version: the reader then calls `publish` or `load`."""
    if fields.get("version") != str(VERSION):
        return None
    return Limits(
        organization_id=organization_id,
        is_suspended=fields["suspended"] == "1",
        time_zone=fields["time_zone"],
        quotas=tuple(QuotaLimit(**quota) for quota in json.loads(fields["quotas"])),
    )


def publish(organization_id: int) -> Limits:
    """Writes the present limits and tells the gateways. Safe to repeat; call it after the change has committed.

    Of two at once the one that read first may write last: whoever has written looks again, and writes what is new.
    """
    limits = load(organization_id)
    while True:
        with client().pipeline(transaction=True) as pipe:
            pipe.hset(key(organization_id), mapping=encode(limits))  # type: ignore[arg-type]  # an invariant union
            pipe.publish(LIMITS_CHANGED, str(organization_id))
            pipe.execute()
        written, limits = limits, load(organization_id)
        if limits == written:
            return limits


def publish_all(batch_size: int = 500) -> int:
    """Re-publishes every organization, so that a lost write heals; returns how many."""
    count = 0
    batch: list[int] = []
    for organization_id in Organization.objects.order_by("id").values_list("id", flat=True).iterator(batch_size):
        batch.append(organization_id)
        if len(batch) == batch_size:
            count += _publish_batch(batch)
            batch = []
    return count + _publish_batch(batch)


def _publish_batch(organization_ids: list[int]) -> int:
    """Where a change came in between, it is published after all, as `publish` does."""
    written = _load_batch(organization_ids)
    with client().pipeline(transaction=False) as pipe:
        for limits in written.values():
            pipe.hset(key(limits.organization_id), mapping=encode(limits))  # type: ignore[arg-type]  # an invariant union
        pipe.execute()
    for organization_id, limits in _load_batch(organization_ids).items():
        if limits != written.get(organization_id):
            publish(organization_id)
    return len(written)


def _load_batch(organization_ids: list[int]) -> dict[int, Limits]:
    """As `load`, of many. Two queries, none for no organizations."""
    quotas: dict[int, list[Quota]] = {organization_id: [] for organization_id in organization_ids}
    for quota in _quotas().filter(organization_id__in=organization_ids):
        quotas[quota.organization_id].append(quota)
    organizations = _organizations().filter(id__in=organization_ids).order_by("id")
    return {each.id: _limits(each, quotas[each.id]) for each in organizations}


def read(organization_id: int) -> Limits:
    """The published limits; published now when Valkey has none."""
    fields: dict[str, str] = client().hgetall(key(organization_id))  # type: ignore[assignment]  # one type for sync and async
    return decode(organization_id, fields) or publish(organization_id)


def exceeded_key(organization_id: int) -> str:
    return f"exceeded:{organization_id}"


def take_exceeded(organization_id: int) -> dict[int, int]:
    """Calls over each soft limit since the last time this was asked."""
    with client().pipeline(transaction=True) as pipe:
        pipe.hgetall(exceeded_key(organization_id))
        pipe.delete(exceeded_key(organization_id))
        counts, _ = pipe.execute()
    return {int(quota_id): int(count) for quota_id, count in counts.items()}


def announce_key(digest: str) -> None:
    """The gateways read the key with this secret anew at its next call."""
    client().publish(KEYS_REVOKED, digest)
