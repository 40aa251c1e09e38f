"""Refusals of the portal's services. `code` is stable; each edge maps it to its protocol."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _


class PortalError(Exception):
    code = "portal_error"


class LastOwner(PortalError):
    code = "last_owner"

    def __init__(self) -> None:
        super().__init__(_("An organization keeps at least one owner; make another member an owner first."))


class NotAllowed(PortalError):
    code = "not_allowed"


class AlreadyMember(PortalError):
    code = "already_member"

    def __init__(self, email: str) -> None:
        super().__init__(_("%(email)s is already a member of this organization.") % {"email": email})


class InvitationNotOpen(PortalError):
    code = "invitation_not_open"

    def __init__(self) -> None:
        super().__init__(_("This invitation was accepted, withdrawn or has expired; ask for a new one."))


class NameTaken(PortalError):
    code = "name_taken"

    def __init__(self, name: str) -> None:
        super().__init__(_("There is already one named %(name)s; choose another name.") % {"name": repr(name)})


class KeyNotActive(PortalError):
    code = "key_not_active"

    def __init__(self, key: str) -> None:
        super().__init__(_("%(key)s is revoked or expired; make a new key instead.") % {"key": key})


class NameHoldsKey(PortalError):
    code = "name_holds_key"

    def __init__(self) -> None:
        super().__init__(_("The name holds an API key, and names are shown: choose another, and revoke that key."))


class NotPossible(PortalError):
    """Asked of a row in a state that does not allow it."""

    code = "not_possible"
