"""Bought credit: asked for, paid at the provider, and granted once with the payment."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.accounts.models import BillingAccount
from billing.accounts.selectors import account_of
from billing.credits.models import TopUp, TopUpKind, TopUpState
from billing.errors import InvalidAmount, KeyReused, PaymentProviderError, PaymentsNotConfigured
from billing.invoices.wording import Wording
from billing.ledger.models import AccountKind, GrantKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.reasons import Reason
from billing.ledger.services import grant_credit
from billing.ledger.wallet import lock_wallet
from billing.money import format_minor, from_minor, nano_per_minor
from billing.payments.configuration import configured_gateway, takes_payments
from billing.payments.gateway import CheckoutOrder, PaymentGateway, TopUpFact
from billing.payments.services import keep_customer, payer_of
from billing.tax.decision import TaxDecision
from billing.tax.selectors import tax_of

logger = logging.getLogger(__name__)

# In whole units of the currency.
LEAST, MOST = 5, 50_000


def make_top_up(
    *, organization_id: int, kind: TopUpKind, amount_minor: int, key: str, keeps_card: bool, actor_id: int | None
) -> TopUp:
    """A purchase with today's tax, in state open. A repeat under the key returns it; other content is refused."""
    account = account_of(organization_id)
    _require_sensible(amount_minor, account.currency)
    tax = tax_of(account, on=timezone.now().astimezone(ZoneInfo(account.time_zone)).date())
    values = {
        "organization_id": organization_id,
        "kind": kind,
        "currency": account.currency,
        "amount_minor": amount_minor,
        "tax_minor": tax.tax_minor(amount_minor),
        "tax_note": tax_label(tax, account),
        "keeps_card": keeps_card,
        "actor_id": actor_id,
    }
    top_up, _is_new = TopUp.objects.get_or_create(key=key, defaults=values)
    if (top_up.organization_id, top_up.amount_minor) != (organization_id, amount_minor):
        raise KeyReused(key, "top-up")
    return top_up


def tax_label(tax: TaxDecision, account: BillingAccount) -> str:
    if not tax.percent:
        return ""
    return f"{tax.name} {Wording(account.language).percent(f'{tax.percent.normalize():f}')}"


def _require_sensible(amount_minor: int, currency: str) -> None:
    whole = 10**9 // nano_per_minor(currency)
    if not LEAST * whole <= amount_minor <= MOST * whole:
        least, most = format_minor(LEAST * whole, currency), format_minor(MOST * whole, currency)
        raise InvalidAmount(
            _("Between %(least)s and %(most)s can be bought at a time.") % {"least": least, "most": most}
        )


def open_checkout(
    *,
    organization_id: int,
    amount_minor: int,
    key: str,
    keeps_card: bool,
    return_url: str,
    actor_id: int | None,
    gateway: PaymentGateway | None = None,
) -> TopUp:
    """A purchase with the address of the provider's page to pay it on. A repeat under the key opens no second one.

    `return_url` is where the page sends the payer back, with `{id}` for the top-up. Raises PaymentsNotConfigured and
    PaymentProviderError.
    """
    if gateway is None and not takes_payments():
        raise PaymentsNotConfigured
    gateway = gateway or configured_gateway()
    top_up = make_top_up(
        organization_id=organization_id,
        kind=TopUpKind.CHECKOUT,
        amount_minor=amount_minor,
        key=key,
        keeps_card=keeps_card,
        actor_id=actor_id,
    )
    if top_up.url or top_up.state != TopUpState.OPEN:
        return top_up
    opened = gateway.open_checkout(
        CheckoutOrder(
            top_up_id=top_up.id,
            payer=payer_of(account_of(organization_id)),
            currency=top_up.currency,
            amount_minor=top_up.amount_minor,
            tax_minor=top_up.tax_minor,
            tax_label=top_up.tax_note,
            description=f"Credit {format_minor(top_up.amount_minor, top_up.currency)}",
            keeps_card=keeps_card,
            return_url=return_url.replace("{id}", str(top_up.id)),
        )
    )
    keep_customer(organization_id, opened.customer_id)
    TopUp.objects.filter(id=top_up.id).update(provider=gateway.name, session_id=opened.session_id, url=opened.url)
    top_up.refresh_from_db()
    return top_up


def refresh(top_up: TopUp, *, gateway: PaymentGateway | None = None, now: datetime | None = None) -> TopUp:
    """Ask the provider how an open purchase stands, when its payer comes back before the event does."""
    if top_up.state != TopUpState.OPEN or not top_up.session_id:
        return top_up
    gateway = gateway or configured_gateway()
    try:
        fact = gateway.look_up(("checkout", top_up.session_id))
    except PaymentProviderError as error:
        logger.warning("top_up_not_refreshed top_up_id=%s error=%s", top_up.id, error)
        return top_up
    if isinstance(fact, TopUpFact):
        settle(gateway.name, fact, now=now or timezone.now())
    top_up.refresh_from_db()
    return top_up


@transaction.atomic
def settle(provider: str, fact: TopUpFact, *, now: datetime) -> bool | None:
    """Bring a purchase to what the provider says. True when that changed it, None when it is none of ours.

    The credit is granted in the transaction that makes it paid: once, whatever tells of the payment how often.
    Raises InvalidAmount when another sum was paid than asked for.
    """
    if fact.top_up_id is None:
        return None
    top_up = TopUp.objects.select_for_update().filter(id=fact.top_up_id).first()
    if top_up is None:
        raise InvalidAmount(f"top-up {fact.top_up_id} is not one of ours")
    if fact.state == "open":
        return None
    if top_up.state == TopUpState.PAID or top_up.state == fact.state:
        return False
    if fact.state == "paid":
        _grant(top_up, provider, fact, now)
    elif top_up.state == TopUpState.OPEN:
        # A page on which one card was refused stays open for another.
        if top_up.kind == TopUpKind.CHECKOUT and fact.state == "failed" and not fact.session_id:
            return None
        _close(top_up, TopUpState(fact.state), fact, now)
    return True


def _grant(top_up: TopUp, provider: str, fact: TopUpFact, now: datetime) -> None:
    if (fact.total_minor, fact.currency) != (top_up.total_minor, top_up.currency):
        raise InvalidAmount(
            f"paid {fact.total_minor} {fact.currency} for {top_up}, which costs {top_up.total_minor} {top_up.currency}"
        )
    days = settings.TOP_UP_EXPIRY_DAYS
    top_up.grant = grant_credit(
        organization_id=top_up.organization_id,
        amount_nano=from_minor(top_up.amount_minor, top_up.currency),
        reason=Reason.AUTO_RECHARGE if top_up.kind == TopUpKind.RECHARGE else Reason.CREDIT_BOUGHT,
        key=f"top-up:{top_up.id}",
        actor_id=top_up.actor_id,
        expires_at=now + timedelta(days=days) if days else None,
        kind=GrantKind.PURCHASE,
        # Given credit is spent before bought credit, which can be paid back.
        priority=150,
    )
    if top_up.tax_minor:
        _post_tax(top_up)
    top_up.provider, top_up.payment_id = provider, fact.payment_id
    top_up.session_id = fact.session_id or top_up.session_id
    top_up.state, top_up.closed_at, top_up.failure = TopUpState.PAID, now, ""
    top_up.save(update_fields=["grant", "provider", "payment_id", "session_id", "state", "closed_at", "failure"])
    if top_up.keeps_card and fact.payment_method_id:
        BillingAccount.objects.filter(organization_id=top_up.organization_id).update(
            stripe_payment_method_id=fact.payment_method_id
        )
    logger.info("top_up_paid top_up_id=%s amount_minor=%s", top_up.id, top_up.amount_minor)


def _post_tax(top_up: TopUp) -> None:
    tax_nano = from_minor(top_up.tax_minor, top_up.currency)
    wallet = lock_wallet(top_up.organization_id)
    entries = (
        Entry(wallet.accounts[AccountKind.TAX], tax_nano),
        Entry(wallet.accounts[AccountKind.CASH], -tax_nano),
    )
    reason = Reason.TOP_UP_TAX.about(top_up.id)
    post([Posting(TransactionKind.TAX, f"tax:top-up:{top_up.id}", entries, reason=reason)])


def _close(top_up: TopUp, state: TopUpState, fact: TopUpFact, now: datetime) -> None:
    top_up.state, top_up.closed_at, top_up.failure = state, now, fact.failure[:300]
    top_up.save(update_fields=["state", "closed_at", "failure"])
    logger.info("top_up_closed top_up_id=%s state=%s", top_up.id, state)
