"""Which gateway the settings ask for."""

from __future__ import annotations

from django.conf import settings

from billing.payments.file_gateway import FileGateway
from billing.payments.gateway import PaymentGateway


def takes_payments() -> bool:
    """Whether a person can pay here: buy credit, keep a card, open the payment page."""
    return bool(settings.STRIPE_SECRET_KEY)


def configured_gateway() -> PaymentGateway:
    """Stripe when a key is set, else files under VAR_DIR."""
    if not takes_payments():
        return FileGateway(settings.VAR_DIR / "payments")
    from billing.payments.stripe_gateway import StripeGateway

    return StripeGateway(
        secret_key=settings.STRIPE_SECRET_KEY,
        webhook_secrets=settings.STRIPE_WEBHOOK_SECRETS,
        api_base=settings.STRIPE_API_BASE,
    )
