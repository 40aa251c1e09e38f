"""Invitations: an address is asked to join, and whoever holds the mailed link and proves that address does."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone, translation

from portal.audit.services import record_event
from portal.errors import AlreadyMember, InvitationNotOpen
from portal.organizations.models import Invitation, Member, Organization
from portal.organizations.roles import Role
from portal.users.models import User

VALID_FOR = timedelta(days=7)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@transaction.atomic
def invite(*, organization: Organization, email: str, role: Role, actor: User) -> Invitation:
    """Mails the link after commit. A repeat for the same address withdraws the first link and sends a new one."""
    email = email.strip().lower()
    if Member.objects.filter(organization=organization, user__email__iexact=email).exists():
        raise AlreadyMember(email)
    now = timezone.now()
    open_ones = Invitation.objects.filter(organization=organization, email__iexact=email, accepted_at=None)
    open_ones.filter(closed_at=None).update(closed_at=now)
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        organization=organization,
        email=email,
        role=role,
        token_digest=_digest(token),
        invited_by=actor,
        expires_at=now + VALID_FOR,
    )
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="member.invited",
        subject=invitation,
        label=email,
        after={"role": role.value},
    )
    transaction.on_commit(partial(_send, invitation, token))
    return invitation


def _send(invitation: Invitation, token: str) -> None:
    """In the language of the account that has the address; where there is none, in that of whoever invites."""
    chosen = User.objects.filter(email__iexact=invitation.email).values_list("language", flat=True).first()
    with translation.override(chosen or translation.get_language()):
        _mail(invitation, token).send()


def _mail(invitation: Invitation, token: str) -> EmailMultiAlternatives:
    context = {
        "invitation": invitation,
        "url": settings.PUBLIC_URL + reverse("portal:invitation", args=[token]),
        "public_url": settings.PUBLIC_URL,
    }
    mail = EmailMultiAlternatives(
        render_to_string("emails/invitation/subject.txt", context).strip(),
        render_to_string("emails/invitation/body.txt", context),
        to=[invitation.email],
    )
    mail.attach_alternative(render_to_string("emails/invitation/body.html", context), "text/html")
    return mail


def find_open(token: str) -> Invitation | None:
    invitation = (
        Invitation.objects.filter(token_digest=_digest(token), accepted_at=None, closed_at=None)
        .select_related("organization", "invited_by")
        .first()
    )
    return invitation if invitation and invitation.expires_at > timezone.now() else None


@transaction.atomic
def accept(*, invitation: Invitation, user: User) -> Member:
    """For the user of the invited address only. A repeat, also at the same time, joins once."""
    now = timezone.now()
    claimed = Invitation.objects.filter(
        id=invitation.id, email__iexact=user.email, accepted_at=None, closed_at=None, expires_at__gt=now
    ).update(accepted_at=now)
    if not claimed:
        raise InvitationNotOpen
    member, _ = Member.objects.get_or_create(
        user=user, organization=invitation.organization, defaults={"role": invitation.role}
    )
    record_event(
        organization_id=invitation.organization_id,
        actor=user,
        action="member.joined",
        subject=member,
        label=user.email,
        after={"role": member.role},
    )
    return member


@transaction.atomic
def withdraw(*, invitation: Invitation, actor: User) -> bool:
    """The link stops working. A repeat changes nothing: False where the invitation was not open any more."""
    if not Invitation.objects.filter(id=invitation.id, accepted_at=None, closed_at=None).update(
        closed_at=timezone.now()
    ):
        return False
    record_event(
        organization_id=invitation.organization_id,
        actor=actor,
        action="member.invitation_withdrawn",
        subject=invitation,
        label=invitation.email,
    )
    return True


def close_expired(*, now: datetime) -> int:
    """Closes what has run out, so that the address can be asked again; returns how many."""
    return Invitation.objects.filter(accepted_at=None, closed_at=None, expires_at__lte=now).update(closed_at=now)
