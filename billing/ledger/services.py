"""Acts that move an organization's money outside of usage: grants, their expiry, corrections."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from billing.errors import InvalidAmount, KeyReused
from billing.ledger.models import AccountKind, CreditGrant, GrantBalance, GrantKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.reasons import Reason
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet

# A request may burn the credit that was valid when it began: expiry waits for the longest request to end.
EXPIRY_GRACE = timedelta(hours=1)

_SOURCES = {
    GrantKind.PROMOTION: AccountKind.PROMOTIONS,
    GrantKind.PURCHASE: AccountKind.CASH,
    GrantKind.CORRECTION: AccountKind.ADJUSTMENTS,
}


@transaction.atomic
def grant_credit(
    *,
    organization_id: int,
    amount_nano: int,
    reason: str,
    key: str,
    actor_id: int | None = None,
    expires_at: datetime | None = None,
    kind: GrantKind = GrantKind.PROMOTION,
    priority: int = 100,
) -> CreditGrant:
    """Give credit, once per `key`: a repeat returns the first grant, however many come at the same time.

    Raises KeyReused when the key was used for another organization or amount.
    """
    if amount_nano <= 0:
        raise InvalidAmount(f"A credit grant must be above zero; {amount_nano} nano is not.")
    wallet = lock_wallet(organization_id)
    CreditGrant.objects.bulk_create(
        [
            CreditGrant(
                organization_id=organization_id,
                kind=kind,
                key=key,
                amount_nano=amount_nano,
                currency=wallet.currency,
                priority=priority,
                expires_at=expires_at,
                reason=reason,
                actor_id=actor_id,
            )
        ],
        ignore_conflicts=True,
    )
    grant = CreditGrant.objects.get(key=key)
    if (grant.organization_id, grant.amount_nano) != (organization_id, amount_nano):
        raise KeyReused(key, "credit grant")
    _, is_new = GrantBalance.objects.get_or_create(grant=grant)
    if not is_new:
        return grant
    post(
        [
            Posting(
                TransactionKind.GRANT,
                f"grant:{key}",
                (
                    Entry(wallet.accounts[AccountKind.CREDIT], amount_nano, grant.id),
                    Entry(wallet.accounts[_SOURCES[kind]], -amount_nano),
                ),
                reason=reason,
                actor_id=actor_id,
            )
        ]
    )
    announce(organization_id, amount_nano)
    return grant


def expire_credits(*, now: datetime) -> int:
    """Take back what is left of grants that ended more than the grace ago; returns how many. A repeat finds none."""
    due = (
        CreditGrant.objects.filter(expires_at__lte=now - EXPIRY_GRACE, balance__remaining_nano__gt=0)
        .order_by("organization_id", "id")
        .values_list("id", "organization_id")
    )
    return sum(_expire_grant(grant_id, organization_id) for grant_id, organization_id in due)


@transaction.atomic
def _expire_grant(grant_id: int, organization_id: int) -> bool:
    wallet = lock_wallet(organization_id)
    remaining_nano = GrantBalance.objects.values_list("remaining_nano", flat=True).get(grant_id=grant_id)
    if remaining_nano == 0:
        return False
    kind = GrantKind(CreditGrant.objects.values_list("kind", flat=True).get(id=grant_id))
    # Paid credit that lapses is earned; given credit goes back to where it came from.
    target = AccountKind.REVENUE if kind == GrantKind.PURCHASE else _SOURCES[kind]
    post(
        [
            Posting(
                TransactionKind.EXPIRY,
                f"expiry:{grant_id}",
                (
                    Entry(wallet.accounts[AccountKind.CREDIT], -remaining_nano, grant_id),
                    Entry(wallet.accounts[target], remaining_nano),
                ),
                reason=Reason.CREDIT_EXPIRED,
            )
        ]
    )
    announce(organization_id, -remaining_nano)
    return True
