"""An organization changes hands, is deleted, and may be restored until its grace period ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.alerts.models import WebhookEndpoint
from portal.api_keys import management
from portal.api_keys.models import ApiKey, ManagementKey
from portal.api_keys.services import revoke
from portal.audit.services import record_event
from portal.errors import NotPossible
from portal.organizations.models import Invitation, Member, Organization
from portal.organizations.roles import Role
from portal.quotas import snapshot
from portal.users.models import User


@transaction.atomic
def transfer(*, organization: Organization, to: Member, actor: Member) -> None:
    """`to` becomes an owner and `actor`, who is one, an admin. Their management keys above that are revoked.

    A repeat finds an actor who is no owner any more; the caller's access check refuses it.
    """
    if to.organization_id != organization.id or to.id == actor.id:
        raise NotPossible(_("Choose another member of this organization to hand it over to."))
    # The rows are locked in one order, as where one leaves: it never is without an owner.
    roles = dict(
        Member.objects.select_for_update().filter(organization=organization).order_by("id").values_list("id", "role")
    )
    if to.id not in roles or roles.get(actor.id) != Role.OWNER:
        raise NotPossible(_("The members have changed meanwhile; reload the page and look again."))
    Member.objects.filter(id=to.id).update(role=Role.OWNER)
    Member.objects.filter(id=actor.id).update(role=Role.ADMIN)
    management.revoke_beyond(member=actor, role=Role.ADMIN, actor=actor.user)
    record_event(
        organization_id=organization.id,
        actor=actor.user,
        action="organization.transferred",
        subject=organization,
        before={"owner": actor.user.email},
        after={"owner": to.user.email},
    )


@transaction.atomic
def request_deletion(*, organization: Organization, actor: User, reason: str = "") -> datetime:
    """Calls are refused at once; it can be restored until the moment that is returned. A repeat keeps the first one."""
    deletes_at = timezone.now() + timedelta(days=settings.ORGANIZATION_GRACE_DAYS)
    if Organization.objects.filter(id=organization.id, deletes_at=None).update(deletes_at=deletes_at):
        record_event(
            organization_id=organization.id,
            actor=actor,
            action="organization.deletion_requested",
            subject=organization,
            after={"deletes_at": f"{deletes_at:%Y-%m-%d %H:%M} UTC"},
            reason=reason,
        )
        transaction.on_commit(partial(snapshot.publish, organization.id))
    organization.refresh_from_db(fields=["deletes_at"])
    assert organization.deletes_at is not None
    return organization.deletes_at


@transaction.atomic
def restore(*, organization: Organization, actor: User) -> None:
    """As if it had not been deleted; a suspension stays. A repeat changes nothing. A closed one cannot be restored."""
    if not Organization.objects.filter(id=organization.id, closed_at=None, deletes_at__isnull=False).update(
        deletes_at=None
    ):
        organization.refresh_from_db(fields=["closed_at", "deletes_at"])
        if organization.closed_at is not None:
            raise NotPossible(_("The organization is closed; its grace period has ended."))
        return
    organization.deletes_at = None
    record_event(organization_id=organization.id, actor=actor, action="organization.restored", subject=organization)
    transaction.on_commit(partial(snapshot.publish, organization.id))


def close_due(*, now: datetime) -> int:
    """Closes what was deleted and not restored in time; returns how many. Safe to repeat, one transaction for each."""
    due = Organization.objects.filter(closed_at=None, deletes_at__lte=now).values_list("id", flat=True)
    return sum(_close(organization_id, now) for organization_id in list(due))


@transaction.atomic
def _close(organization_id: int, now: datetime) -> bool:
    """Nobody and nothing is in it any more. Its books, invoices and audit log stay: the law asks for them."""
    if not Organization.objects.filter(id=organization_id, closed_at=None, deletes_at__lte=now).update(closed_at=now):
        return False
    organization = Organization.objects.get(id=organization_id)
    for api_key in ApiKey.objects.filter(organization=organization, revoked_at=None):
        revoke(api_key=api_key, actor=None)
    for key in ManagementKey.objects.filter(organization=organization, revoked_at=None):
        management.revoke(key=key, actor=None, reason="The organization was deleted")
    WebhookEndpoint.objects.filter(organization=organization).delete()
    Invitation.objects.filter(organization=organization, accepted_at=None, closed_at=None).update(closed_at=now)
    people = list(Member.objects.filter(organization=organization).values_list("user__email", flat=True))
    Member.objects.filter(organization=organization).delete()
    record_event(
        organization_id=organization_id,
        actor=None,
        action="organization.closed",
        subject=organization,
        before={"members": ", ".join(people)},
    )
    return True
