"""People's accounts, where no form of the sign-in library makes them."""

from __future__ import annotations

from allauth.account.models import EmailAddress
from django.db import transaction

from portal.audit.services import record_event
from portal.users.models import User


@transaction.atomic
def make_operator(*, email: str, password: str) -> User:
    """The user of this address, made if missing, as an operator with this password. Sessions of the old one end."""
    user = User.objects.filter(email=email).first() or User.objects.create_user(email)
    user.is_staff = user.is_superuser = user.is_active = True
    user.set_password(password)
    user.save()
    # Whoever runs the command vouches for the address: an operator need not receive a mail first.
    EmailAddress.objects.update_or_create(user=user, email=email, defaults={"verified": True, "primary": True})
    record_event(organization_id=None, actor=None, action="operator.made", subject=user, label=email)
    return user
