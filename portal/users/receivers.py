"""What follows when a person proves their address."""

from __future__ import annotations

from typing import Any

from allauth.account.models import EmailAddress
from allauth.account.signals import email_confirmed, user_signed_up
from django.dispatch import receiver

from portal.organizations.services import provide_first_organization
from portal.users.models import User


@receiver(email_confirmed)
def give_first_organization(email_address: EmailAddress, **_: Any) -> None:
    """Organization, default project and free credit, in one transaction. A second proven address gives nothing more."""
    user = email_address.user
    assert isinstance(user, User)
    provide_first_organization(user)


@receiver(user_signed_up)
def welcome_from_issuer(user: User, **_: Any) -> None:
    """Who signs up through an issuer that vouches for the address has proved it already, and confirms nothing later."""
    if EmailAddress.objects.filter(user=user, verified=True).exists():
        provide_first_organization(user)
