"""The free credit of a newcomer: once per person and once per organization."""

from __future__ import annotations

from django.conf import settings
from django.db import transaction
from django.utils.crypto import salted_hmac

from billing.credits.models import FreeCreditClaim
from billing.ledger.models import CreditGrant
from billing.ledger.reasons import Reason
from billing.ledger.services import grant_credit

# Where dots in the name mean nothing and the domains are one.
_DOTLESS = {"gmail.com": "gmail.com", "googlemail.com": "gmail.com"}


def normalise_email(email: str) -> str:
    """One form for all addresses that reach the same mailbox: no case, no +tag, no dots where they mean nothing."""
    local, _, domain = email.strip().lower().rpartition("@")
    domain = domain.rstrip(".")
    local = local.partition("+")[0]
    if domain in _DOTLESS:
        local, domain = local.replace(".", ""), _DOTLESS[domain]
    return f"{local}@{domain}"


def is_blocked(email: str) -> bool:
    """Whether the address is of a domain that gets none, e.g. one of throw-away mailboxes; subdomains count."""
    domain = normalise_email(email).rpartition("@")[2]
    return any(domain == blocked or domain.endswith(f".{blocked}") for blocked in settings.FREE_CREDIT_BLOCKED_DOMAINS)


@transaction.atomic
def give_free_credit(*, organization_id: int, email: str, actor_id: int | None) -> CreditGrant | None:
    """FREE_CREDIT_NANO, unless this person or this organization had it; None then. Of many at once one gets it.

    Only a digest of the address is kept, so that a person who left is still known and no longer named.
    """
    if not settings.FREE_CREDIT_NANO or is_blocked(email):
        return None
    digest = salted_hmac(
        "billing.credits.free", normalise_email(email), settings.API_KEY_PEPPER, algorithm="sha256"
    ).hexdigest()
    claimed = FreeCreditClaim.objects.bulk_create(
        [FreeCreditClaim(person_digest=digest, organization_id=organization_id)], ignore_conflicts=True
    )
    # Whoever's row stands has the claim: a conflict left the first one.
    claim = FreeCreditClaim.objects.filter(organization_id=organization_id, person_digest=digest).first()
    if not claimed or claim is None:
        return None
    return grant_credit(
        organization_id=organization_id,
        amount_nano=settings.FREE_CREDIT_NANO,
        reason=Reason.FREE_CREDIT,
        key=f"free-credit:organization:{organization_id}",
        actor_id=actor_id,
    )
