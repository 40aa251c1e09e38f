"""What `manage.py check` says of the payment provider's key."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register

FULL_KEY = "sk_"


@register(Tags.security)
def check_key(**_: Any) -> list[CheckMessage]:
    """A full key may do everything at Stripe; a restricted one only what is used here."""
    if not settings.STRIPE_SECRET_KEY.startswith(FULL_KEY):
        return []
    return [
        Warning(
            "STRIPE_SECRET_KEY is a full key.",
            hint="Make a restricted key (rk_…) with the permissions that docs/operations/stripe.md lists.",
            id="billing.W001",
        )
    ]
