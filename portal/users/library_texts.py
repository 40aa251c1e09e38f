"""What the sign-in library says itself, to people whom its own German calls by the first name.

Named here, these texts are in our catalogue, which goes before the library's.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop

TEXTS = (
    gettext_noop("You have confirmed %(email)s."),
    gettext_noop("You have signed out."),
    gettext_noop("Are you sure you want to sign out?"),
    gettext_noop("You cannot remove your primary email address (%(email)s)."),
    gettext_noop("You cannot remove your primary email address."),
    gettext_noop("Your primary email address must be verified."),
    gettext_noop("You cannot add more than %d email addresses."),
    gettext_noop("Please type your current password."),
    gettext_noop("You must type the same password each time."),
    gettext_noop("Be patient, you are sending too many requests."),
    gettext_noop("You are about to deactivate authenticator app based authentication. Are you sure?"),
    gettext_noop("You are about to generate a new set of recovery codes for your account."),
    gettext_noop(
        "An account already exists with this email address. Please sign in to that account first, then connect your"
        " %s account."
    ),
    gettext_noop("Your account has no password set up."),
    gettext_noop("Your account has no verified email address."),
    gettext_noop("You are about to connect a new third-party account from %(provider)s."),
    gettext_noop("You are about to sign in using a third-party account from %(provider)s."),
)
