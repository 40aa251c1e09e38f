"""Issue and revoke API keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.db import connection, transaction
from django.utils import timezone

from portal.api_keys import secrets
from portal.api_keys.models import ApiKey, Purpose
from portal.audit.services import record_event
from portal.organizations.models import Project
from portal.quotas import snapshot
from portal.users.models import User


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """`secret` exists here only: it is shown to its maker once and not stored."""

    api_key: ApiKey
    secret: str


@transaction.atomic
def issue(*, project: Project, name: str, actor: User | None, expires_at: datetime | None = None) -> IssuedKey:
    """A repeat makes a second key."""
    secret = secrets.generate()
    api_key = ApiKey.objects.create(
        project=project,
        organization_id=project.organization_id,
        name=name,
        prefix=secrets.shown_prefix(secret),
        digest=secrets.digest(secret),
        created_by=actor,
        expires_at=expires_at,
    )
    record_event(
        organization_id=project.organization_id,
        actor=actor,
        action="api_key.issued",
        subject=api_key,
        label=str(api_key),
        after={"name": name, "project": project.slug, "expires_at": expires_at.isoformat() if expires_at else None},
    )
    return IssuedKey(api_key, secret)


@transaction.atomic
def revoke(*, api_key: ApiKey, actor: User | None) -> None:
    """The gateways refuse the key within seconds. A repeat changes nothing."""
    now = timezone.now()
    if not ApiKey.objects.filter(id=api_key.id, revoked_at=None).update(revoked_at=now):
        return
    api_key.revoked_at = now
    record_event(
        organization_id=api_key.organization_id,
        actor=actor,
        action="api_key.revoked",
        subject=api_key,
        label=str(api_key),
    )
    transaction.on_commit(partial(snapshot.announce_key_revoked, api_key.digest))


def playground_key(project: Project) -> ApiKey:
    """The project's key for calls from the portal; made at first use. Nobody knows its secret."""
    existing = ApiKey.objects.filter(project=project, purpose=Purpose.PLAYGROUND, revoked_at=None).first()
    if existing:
        return existing
    secret = secrets.generate()
    # Two first calls at once: the partial unique index lets one row in, and both read it.
    ApiKey.objects.bulk_create(
        [
            ApiKey(
                project=project,
                organization_id=project.organization_id,
                name="Playground",
                prefix="playground",
                digest=secrets.digest(secret),
                purpose=Purpose.PLAYGROUND,
            )
        ],
        ignore_conflicts=True,
    )
    return ApiKey.objects.get(project=project, purpose=Purpose.PLAYGROUND, revoked_at=None)


def mark_used(last_used: Mapping[int, datetime]) -> None:
    """Moves `last_used_at` forward, never back, in one statement; `last_used` maps key ids to times. Safe to repeat."""
    if not last_used:
        return
    ids = sorted(last_used)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE portal_apikey AS k SET last_used_at = u.used_at"
            " FROM unnest(%s::bigint[], %s::timestamptz[]) AS u(id, used_at)"
            " WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < u.used_at)",
            [ids, [last_used[key_id] for key_id in ids]],
        )
