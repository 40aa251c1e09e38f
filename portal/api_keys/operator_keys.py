"""Operator keys: they act in the operator's paths of the management API, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from allauth.mfa.utils import is_mfa_enabled
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.api_keys import secrets
from portal.api_keys.models import OperatorKey
from portal.api_keys.services import refuse_key_as_name
from portal.audit.services import record_event
from portal.errors import NotPossible
from portal.users.models import User


@dataclass(frozen=True, slots=True)
class IssuedOperatorKey:
    """`secret` exists here only."""

    key: OperatorKey
    secret: str


@transaction.atomic
def issue(
    *, maker: User, name: str, may_change: bool, expires_at: datetime, networks: Sequence[str] = ()
) -> IssuedOperatorKey:
    """For an operator (the caller checks); NotPossible without a second factor. A repeat makes a second key."""
    if not is_mfa_enabled(maker):
        raise NotPossible(
            _("Set up two-factor authentication in your account first: an operator key opens every customer.")
        )
    refuse_key_as_name(name)
    secret = secrets.generate(secrets.Kind.OPERATOR)
    key = OperatorKey.objects.create(
        name=name,
        may_change=may_change,
        prefix=secrets.shown_prefix(secret),
        digest=secrets.digest(secret),
        allowed_networks=list(networks),
        created_by=maker,
        expires_at=expires_at,
    )
    record_event(
        organization_id=None,
        actor=maker,
        action="operator_key.issued",
        subject=key,
        label=str(key),
        after={
            "name": name,
            "may change": may_change,
            "expires_at": f"{expires_at:%Y-%m-%d %H:%M} UTC",
            "networks": ", ".join(networks) or "all",
        },
    )
    return IssuedOperatorKey(key, secret)


@transaction.atomic
def revoke(*, key: OperatorKey, actor: User) -> None:
    """Refused from the next request on. A repeat changes nothing."""
    now = timezone.now()
    if not OperatorKey.objects.filter(id=key.id, revoked_at=None).update(revoked_at=now):
        return
    key.revoked_at = now
    record_event(organization_id=None, actor=actor, action="operator_key.revoked", subject=key, label=str(key))


def find(digest: str) -> OperatorKey | None:
    """The unrevoked key with this secret while its maker is an active operator with a second factor; else None."""
    key = (
        OperatorKey.objects.filter(
            digest=digest, revoked_at=None, created_by__is_active=True, created_by__is_staff=True
        )
        .select_related("created_by")
        .first()
    )
    return key if key is not None and is_mfa_enabled(key.created_by) else None


def all_keys() -> QuerySet[OperatorKey]:
    """Newest first, revoked ones included; the maker comes in the same query."""
    return OperatorKey.objects.select_related("created_by").order_by("-id")
