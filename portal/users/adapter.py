"""What the sign-in library asks us: where a client is, how second factors are kept, and when a name is known."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from django.http import HttpRequest

from portal.client_address import text_of
from portal.plain_text import without_invisible
from portal.sealing import seal, unseal
from portal.users.models import User


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # the library has no types
    def get_client_ip(self, request: HttpRequest) -> str:
        """As everywhere else; all that is unknown shares one address, and so one rate limit."""
        return text_of(request) or "::"


class MFAAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # the library has no types
    """Second factors are sealed: the database alone makes nobody a code."""

    def encrypt(self, text: str) -> str:
        return seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        return unseal(encrypted_text)


class SocialAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # the library has no types
    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: dict[str, Any]) -> User:
        user: User = super().populate_user(request, sociallogin, data)
        parts = (data.get("first_name"), data.get("last_name"))
        user.name = without_invisible(data.get("name") or " ".join(part for part in parts if part))[:100]
        return user
