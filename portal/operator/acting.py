"""An operator on an organization's pages as if a member: for half an hour, with a reason, under a banner, on record.

What is done meanwhile is audited under the operator's own name. The gateway does not know of it: nobody spends an
organization's money this way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.sessions.backends.base import SessionBase
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from portal.audit.services import record_event
from portal.organizations.models import Organization
from portal.organizations.roles import Role
from portal.users.models import User

LIFETIME = timedelta(minutes=30)
ROLES = (Role.VIEWER, Role.ADMIN)
_SESSION_KEY = "acting"


@dataclass(frozen=True, slots=True)
class Acting:
    organization_id: int
    slug: str
    name: str
    role: Role
    until: datetime


@transaction.atomic
def start(*, session: SessionBase, organization: Organization, role: Role, actor: User, reason: str) -> None:
    """Takes the place of what the operator was acting for before. The organization's own audit log shows it."""
    until = timezone.now() + LIFETIME
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="operator.acting_started",
        subject=organization,
        after={"role": role.value, "until": until.isoformat()},
        reason=reason,
    )
    session[_SESSION_KEY] = [organization.id, role.value, until.isoformat()]


@transaction.atomic
def stop(*, session: SessionBase, actor: User) -> None:
    """Ends it before its time. A repeat does nothing."""
    kept = session.pop(_SESSION_KEY, None)
    organization = Organization.objects.filter(id=kept[0]).first() if kept else None
    if organization is not None:
        record_event(
            organization_id=organization.id, actor=actor, action="operator.acting_stopped", subject=organization
        )


def _kept(request: HttpRequest) -> Acting | None:
    kept = request.session.get(_SESSION_KEY)
    if kept is None:
        return None
    organization_id, role, until = kept[0], Role(kept[1]), datetime.fromisoformat(kept[2])
    organization = Organization.objects.filter(id=organization_id).first()
    user = request.user
    if organization is None or until <= timezone.now() or not (user.is_authenticated and user.is_staff):
        request.session.pop(_SESSION_KEY, None)
        return None
    return Acting(organization.id, organization.slug, organization.name, role, until)


class ActingMiddleware:
    """Tells the request's user for whom they act. Costs nothing while nobody does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        acting = _kept(request)
        if acting is not None and request.user.is_authenticated:
            request.user.acting = acting
        return self.get_response(request)
