"""What follows when a person proves their address."""

from __future__ import annotations

from typing import Any

from allauth.account.models import EmailAddress
from allauth.account.signals import email_confirmed
from django.dispatch import receiver

from portal.organizations.services import provide_first_organization
from portal.users.models import User


@receiver(email_confirmed)
def give_first_organization(email_address: EmailAddress, **_: Any) -> None:
    """Organization, default project and free credit, in one transaction. A second proven address gives nothing more."""
    user = email_address.user
    assert isinstance(user, User)
    provide_first_organization(user)
