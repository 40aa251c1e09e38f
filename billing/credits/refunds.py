"""Gives bought credit back as money. The credit leaves first, so that it is not spent while the money travels."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.credits.models import Refund, RefundState, TopUp, TopUpState
from billing.errors import KeyReused, PaymentProviderError, RefundRefused
from billing.ledger.models import AccountKind, GrantBalance, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.money import divide_half_even, format_minor, from_minor, nano_per_minor
from billing.payments.configuration import configured_gateway
from billing.payments.gateway import PaymentGateway, RefundFact, RefundOrder

logger = logging.getLogger(__name__)


def refundable_minor(top_up: TopUp) -> int:
    """What is left of the purchase, in whole cents, its tax not counted."""
    if top_up.state != TopUpState.PAID or top_up.grant_id is None:
        return 0
    remaining_nano = GrantBalance.objects.values_list("remaining_nano", flat=True).get(grant_id=top_up.grant_id)
    return remaining_nano // nano_per_minor(top_up.currency)


@transaction.atomic
def start_refund(*, top_up: TopUp, amount_minor: int, reason: str, key: str, actor_id: int | None) -> Refund:
    """Take unspent credit of a purchase back and send its money, with the tax in proportion, after the commit.

    A repeat under the key returns the refund. Refused above what is left of the purchase.
    """
    wallet = lock_wallet(top_up.organization_id)
    repeated = Refund.objects.filter(key=key).first()
    if repeated is not None:
        if (repeated.top_up_id, repeated.amount_minor) != (top_up.id, amount_minor):
            raise KeyReused(key, "refund")
        return repeated
    left_minor = refundable_minor(top_up)
    if not 0 < amount_minor <= left_minor:
        left = format_minor(left_minor, top_up.currency)
        raise RefundRefused(_("%(left)s of this purchase is unspent; enter an amount up to that.") % {"left": left})
    before = top_up.refunds.exclude(state=RefundState.FAILED)
    refunded_minor, refunded_tax_minor = (
        sum(getattr(row, name) for row in before) for name in ("amount_minor", "tax_minor")
    )
    tax_minor = divide_half_even(amount_minor * top_up.tax_minor, top_up.amount_minor)
    if refunded_minor + amount_minor == top_up.amount_minor:
        tax_minor = top_up.tax_minor - refunded_tax_minor
    refund = Refund.objects.create(
        top_up=top_up, key=key, amount_minor=amount_minor, tax_minor=tax_minor, reason=reason, actor_id=actor_id
    )
    _post(refund, wallet.accounts, sign=1, suffix="")
    transaction.on_commit(partial(_enqueue, refund.id), robust=True)
    return refund


def _post(refund: Refund, accounts: dict[AccountKind, int], *, sign: int, suffix: str) -> None:
    top_up = refund.top_up
    amount_nano = sign * from_minor(refund.amount_minor, top_up.currency)
    tax_nano = sign * from_minor(refund.tax_minor, top_up.currency)
    entries = [
        Entry(accounts[AccountKind.CREDIT], -amount_nano, top_up.grant_id),
        Entry(accounts[AccountKind.CASH], amount_nano + tax_nano),
    ]
    if tax_nano:
        entries.append(Entry(accounts[AccountKind.TAX], -tax_nano))
    key = f"refund:{refund.id}{suffix}"
    post([Posting(TransactionKind.REFUND, key, tuple(entries), reason=refund.reason, actor_id=refund.actor_id)])
    announce(top_up.organization_id, -amount_nano)


def send_refund(refund_id: int, *, gateway: PaymentGateway | None = None, now: datetime | None = None) -> Refund:
    """Ask the provider to pay it back. A repeat sends nothing twice; a refusal brings the credit back."""
    gateway = gateway or configured_gateway()
    refund = Refund.objects.select_related("top_up").get(id=refund_id)
    if refund.state != RefundState.PENDING:
        return refund
    try:
        fact = gateway.refund(RefundOrder(refund.id, refund.top_up.payment_id, refund.total_minor))
    except PaymentProviderError as error:
        if error.is_retryable:
            raise
        fact = RefundFact(refund.id, "", "failed", str(error))
    settle(fact, now=now or timezone.now())
    refund.refresh_from_db()
    return refund


@transaction.atomic
def settle(fact: RefundFact, *, now: datetime) -> bool | None:
    """Bring a refund to what the provider says. True when that changed it, None when it is none of ours."""
    if fact.refund_id is None:
        return None
    refund = Refund.objects.select_for_update().filter(id=fact.refund_id).first()
    if refund is None:
        raise RefundRefused(f"refund {fact.refund_id} is not one of ours")
    if fact.state == "pending":
        Refund.objects.filter(id=refund.id).update(external_id=fact.external_id)
        return None
    if refund.state == RefundState(fact.state) or refund.state == RefundState.FAILED:
        return False
    # A bank may send money back days after it was paid: then the credit returns too.
    if fact.state == "failed":
        _post(refund, lock_wallet(refund.top_up.organization_id).accounts, sign=-1, suffix=":failed")
    refund.state, refund.closed_at = RefundState(fact.state), now
    refund.external_id = fact.external_id or refund.external_id
    refund.failure = fact.failure[:300]
    refund.save(update_fields=["state", "closed_at", "external_id", "failure"])
    logger.info("refund_settled refund_id=%s state=%s", refund.id, refund.state)
    return True


def refunds_to_send() -> list[int]:
    """Those that the provider was not asked for yet, e.g. after a broker was away."""
    pending = Refund.objects.filter(state=RefundState.PENDING, external_id="")
    return list(pending.order_by("id").values_list("id", flat=True))


def _enqueue(refund_id: int) -> None:
    from billing.tasks import send_refund as task

    task.delay(refund_id)
