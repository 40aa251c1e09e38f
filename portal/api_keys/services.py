"""Issue, change, rotate and revoke API keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import connection, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.api_keys import secrets
from portal.api_keys.models import ApiKey, Purpose, RetiredSecret
from portal.api_keys.redaction import holds_key
from portal.audit.services import record_event
from portal.errors import KeyNotActive, NameHoldsKey, NotPossible
from portal.organizations.models import Project
from portal.quotas import snapshot
from portal.users.models import User


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What a key may be used for, and from where. Empty allows everything."""

    routes: Sequence[str] = ()
    models: Sequence[str] = ()
    networks: Sequence[str] = ()


ANYTHING = KeyRules()


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """`secret` exists here only: it is shown to its maker once and not stored."""

    api_key: ApiKey
    secret: str


def refuse_key_as_name(name: str) -> None:
    """Someone pasted a key where its name belongs: names are shown and logged."""
    if holds_key(name):
        raise NameHoldsKey


@transaction.atomic
def issue(
    *,
    project: Project,
    name: str,
    actor: User | None,
    expires_at: datetime | None = None,
    rules: KeyRules = ANYTHING,
) -> IssuedKey:
    """A repeat makes a second key."""
    refuse_key_as_name(name)
    if project.is_archived:
        raise NotPossible(
            _("The project %(name)s is archived; restore it, or choose another one.") % {"name": repr(project.name)}
        )
    secret = secrets.generate()
    api_key = ApiKey.objects.create(
        project=project,
        organization_id=project.organization_id,
        name=name,
        prefix=secrets.shown_prefix(secret),
        digest=secrets.digest(secret),
        created_by=actor,
        expires_at=expires_at,
        **_columns(rules),
    )
    record_event(
        organization_id=project.organization_id,
        actor=actor,
        action="api_key.issued",
        subject=api_key,
        label=str(api_key),
        after={"name": name, "project": project.slug, **_told(api_key)},
    )
    return IssuedKey(api_key, secret)


def _columns(rules: KeyRules) -> dict[str, list[str]]:
    return {f"allowed_{what}": list(allowed) for what, allowed in asdict(rules).items()}


def _told(api_key: ApiKey) -> dict[str, Any]:
    """What the audit log tells of a key's rules."""
    return {
        "expires_at": f"{api_key.expires_at:%Y-%m-%d %H:%M} UTC" if api_key.expires_at else None,
        "routes": ", ".join(api_key.allowed_routes) or "all",
        "models": ", ".join(api_key.allowed_models) or "all",
        "networks": ", ".join(api_key.allowed_networks) or "all",
    }


@transaction.atomic
def change(*, api_key: ApiKey, name: str, expires_at: datetime | None, rules: KeyRules, actor: User) -> ApiKey:
    """New name, end and rules; the gateways use them within seconds. A repeat changes nothing."""
    refuse_key_as_name(name)
    api_key = _lock_active(api_key)
    before = {"name": api_key.name, **_told(api_key)}
    api_key.name, api_key.expires_at = name, expires_at
    for column, allowed in _columns(rules).items():
        setattr(api_key, column, allowed)
    after = {"name": name, **_told(api_key)}
    if before == after:
        return api_key
    api_key.save(update_fields=["name", "expires_at", "allowed_routes", "allowed_models", "allowed_networks"])
    record_event(
        organization_id=api_key.organization_id,
        actor=actor,
        action="api_key.changed",
        subject=api_key,
        label=str(api_key),
        before=before,
        after=after,
    )
    transaction.on_commit(partial(announce, api_key.id))
    return api_key


@transaction.atomic
def rotate(*, api_key: ApiKey, overlap: timedelta, actor: User) -> IssuedKey:
    """A new secret for the same key: name, rules, limits, budget and usage go on. The old one works for `overlap` more.

    A repeat makes another secret; each secret keeps the end that its own rotation gave it.
    """
    now = timezone.now()
    api_key = _lock_active(api_key)
    if api_key.is_expired(now):
        raise KeyNotActive(str(api_key))
    secret = secrets.generate()
    old = str(api_key)
    RetiredSecret.objects.create(
        api_key=api_key, prefix=api_key.prefix, digest=api_key.digest, retired_at=now, works_until=now + overlap
    )
    transaction.on_commit(partial(announce, api_key.id))
    api_key.prefix, api_key.digest, api_key.rotated_at = secrets.shown_prefix(secret), secrets.digest(secret), now
    api_key.save(update_fields=["prefix", "digest", "rotated_at"])
    record_event(
        organization_id=api_key.organization_id,
        actor=actor,
        action="api_key.rotated",
        subject=api_key,
        label=str(api_key),
        before={"secret": old},
        after={"secret": str(api_key), "old secret works until": f"{now + overlap:%Y-%m-%d %H:%M} UTC"},
    )
    return IssuedKey(api_key, secret)


@transaction.atomic
def end_retired(*, api_key: ApiKey, retired: RetiredSecret, actor: User) -> None:
    """Ends the overlap of a replaced secret now. A repeat changes nothing."""
    now = timezone.now()
    if not RetiredSecret.objects.filter(id=retired.id, works_until__gt=now).update(works_until=now):
        return
    record_event(
        organization_id=api_key.organization_id,
        actor=actor,
        action="api_key.old_secret_ended",
        subject=api_key,
        label=f"{api_key.name} ({retired.prefix}…)",
    )
    transaction.on_commit(partial(snapshot.announce_key, retired.digest))


def _lock_active(api_key: ApiKey) -> ApiKey:
    found = ApiKey.objects.select_for_update(of=("self",)).select_related("project").get(id=api_key.id)
    if found.revoked_at is not None:
        raise KeyNotActive(str(found))
    return found


def announce(api_key_id: int) -> None:
    """The gateways read the key anew, by each of its secrets. To be called when the change has committed: a secret that
    a rotation makes in between is then either found here, or was read after the change."""
    retired = RetiredSecret.objects.filter(api_key_id=api_key_id).values_list("digest")
    for (digest,) in ApiKey.objects.filter(id=api_key_id).values_list("digest").union(retired, all=True):
        snapshot.announce_key(digest)


@transaction.atomic
def revoke(*, api_key: ApiKey, actor: User | None, reason: str = "") -> None:
    """The gateways refuse the key and the secrets it had before within seconds. A repeat changes nothing."""
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
        reason=reason,
    )
    transaction.on_commit(partial(announce, api_key.id))


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
