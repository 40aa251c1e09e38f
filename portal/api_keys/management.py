"""Management keys: they act in the management API for one organization, and can call no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from portal.api_keys import secrets
from portal.api_keys.models import ManagementKey, PersonalKey
from portal.api_keys.services import refuse_key_as_name
from portal.audit.services import record_event
from portal.organizations.models import Member
from portal.organizations.roles import Role
from portal.permissions import Permission, allows, may_grant
from portal.users.models import User

# `last_used_at` moves in steps of this, so that a busy script costs one write a minute.
USED_STEP = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class IssuedManagementKey:
    """`secret` exists here only."""

    key: ManagementKey
    secret: str


@transaction.atomic
def issue(
    *,
    maker: Member,
    name: str,
    role: Role,
    expires_at: datetime | None = None,
    networks: Sequence[str] = (),
) -> IssuedManagementKey:
    """In the maker's name, with a role that is not above theirs (the caller checks). A repeat makes a second key."""
    refuse_key_as_name(name)
    secret = secrets.generate(secrets.Kind.MANAGEMENT)
    key = ManagementKey.objects.create(
        organization=maker.organization,
        name=name,
        role=role,
        prefix=secrets.shown_prefix(secret),
        digest=secrets.digest(secret),
        allowed_networks=list(networks),
        created_by=maker.user,
        expires_at=expires_at,
    )
    record_event(
        organization_id=maker.organization_id,
        actor=maker.user,
        action="management_key.issued",
        subject=key,
        label=str(key),
        after={
            "name": name,
            "role": role.value,
            "expires_at": f"{expires_at:%Y-%m-%d %H:%M} UTC" if expires_at else None,
            "networks": ", ".join(networks) or "all",
        },
    )
    return IssuedManagementKey(key, secret)


@transaction.atomic
def revoke(*, key: ManagementKey, actor: User | None, reason: str = "") -> None:
    """Refused from the next request on. A repeat changes nothing."""
    now = timezone.now()
    if not ManagementKey.objects.filter(id=key.id, revoked_at=None).update(revoked_at=now):
        return
    key.revoked_at = now
    record_event(
        organization_id=key.organization_id,
        actor=actor,
        action="management_key.revoked",
        subject=key,
        label=str(key),
        reason=reason,
    )


def revoke_beyond(*, member: Member, role: Role | None, actor: User | None) -> None:
    """Revokes the member's management keys that they may no longer have with `role`; None: they leave."""
    for key in ManagementKey.objects.filter(organization=member.organization, created_by=member.user, revoked_at=None):
        keeps = role is not None and allows(role, Permission.MANAGE_MANAGEMENT_KEYS) and may_grant(role, Role(key.role))
        if not keeps:
            revoke(key=key, actor=actor, reason="Its maker no longer has the role it needs")


def mark_used(key: PersonalKey, now: datetime) -> None:
    """Lazily: at most one write a step, also when two calls come at once."""
    if key.last_used_at is not None and now - key.last_used_at < USED_STEP:
        return
    keys = type(key)._default_manager.filter(pk=key.pk)
    keys.filter(Q(last_used_at=None) | Q(last_used_at__lt=now - USED_STEP)).update(last_used_at=now)
