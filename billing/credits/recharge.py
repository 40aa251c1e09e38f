"""Auto-recharge: one charge when the credit runs low, as large as it takes, never above the month's ceiling."""

from __future__ import annotations

import logging
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.accounts.selectors import account_of
from billing.accounts.services import lock_account
from billing.credits.models import AutoRecharge, TopUp, TopUpKind, TopUpState
from billing.credits.topups import make_top_up, settle
from billing.errors import InvalidAmount, NoCardKept, PaymentsNotConfigured
from billing.invoices.periods import month_of
from billing.ledger import selectors as ledger
from billing.money import format_minor, nano_per_minor
from billing.payments.configuration import configured_gateway, takes_payments
from billing.payments.gateway import CardCharge, PaymentGateway
from billing.payments.services import payer_of

logger = logging.getLogger(__name__)


@transaction.atomic
def set_auto_recharge(
    *,
    organization_id: int,
    is_enabled: bool,
    threshold_minor: int,
    amount_minor: int,
    monthly_ceiling_minor: int,
    now: datetime | None = None,
) -> AutoRecharge:
    """Switch it on or off; saving it starts one again that a refused card had paused. Needs a kept card to be on."""
    account = lock_account(organization_id)
    if is_enabled and not account.stripe_payment_method_id:
        raise NoCardKept
    if threshold_minor < 0 or amount_minor <= 0 or monthly_ceiling_minor < amount_minor:
        raise InvalidAmount(_("The amount must be above zero, and the month's ceiling at least the amount."))
    recharge, _is_new = AutoRecharge.objects.update_or_create(
        organization_id=organization_id,
        defaults={
            "is_enabled": is_enabled,
            "threshold_minor": threshold_minor,
            "amount_minor": amount_minor,
            "monthly_ceiling_minor": monthly_ceiling_minor,
            "paused_at": None,
            "paused_reason": "",
            "updated_at": now or timezone.now(),
        },
    )
    return recharge


def amount_to_charge(recharge: AutoRecharge, *, available_minor: int, spent_minor: int) -> int:
    """What to buy now, 0 for nothing: pure.

    One charge clears a deficit however deep: at least the agreed amount, and enough to stand at the threshold again.
    What the month's ceiling leaves may be less; then it is all of that, if it is still a whole step.
    """
    if available_minor >= recharge.threshold_minor:
        return 0
    wanted = max(recharge.amount_minor, recharge.threshold_minor - available_minor)
    left = recharge.monthly_ceiling_minor - spent_minor
    return min(wanted, left) if left >= recharge.amount_minor else 0


def spent_this_month_minor(organization_id: int, now: datetime) -> int:
    """What auto-recharge bought since the month began in the billing zone, charges under way included."""
    start = month_of(now, account_of(organization_id).time_zone).start
    rows = TopUp.objects.filter(
        organization_id=organization_id,
        kind=TopUpKind.RECHARGE,
        state__in=[TopUpState.OPEN, TopUpState.PAID],
        created_at__gte=start,
    )
    return int(rows.aggregate(total=Sum("amount_minor"))["total"] or 0)


def organizations_to_recharge() -> list[int]:
    """Those whose credit is below their threshold, or whose charge was left half-way, in three queries."""
    active = AutoRecharge.objects.filter(is_enabled=True, paused_at__isnull=True)
    thresholds = dict(active.values_list("organization_id", "threshold_minor"))
    if not thresholds:
        return []
    unfinished = TopUp.objects.filter(kind=TopUpKind.RECHARGE, state=TopUpState.OPEN)
    due = set(unfinished.values_list("organization_id", flat=True))
    for balance in ledger.balances(sorted(thresholds)):
        if balance.available_nano < thresholds[balance.organization_id] * nano_per_minor(balance.currency):
            due.add(balance.organization_id)
    return sorted(due)


def recharge(
    organization_id: int, *, gateway: PaymentGateway | None = None, now: datetime | None = None
) -> TopUp | None:
    """Charge the kept card if the credit is low; None when nothing is to be done.

    Of many at once one charges: an open charge is unique. One left half-way is taken up again, under its own id at the
    provider. A refusal pauses the recharge until a person saves it again.
    """
    if gateway is None and not takes_payments():
        raise PaymentsNotConfigured
    gateway = gateway or configured_gateway()
    now = now or timezone.now()
    top_up = _claim(organization_id, now)
    if top_up is None:
        return None
    account = account_of(organization_id)
    fact = gateway.charge_card(
        CardCharge(
            top_up_id=top_up.id,
            payer=payer_of(account),
            payment_method_id=account.stripe_payment_method_id,
            currency=top_up.currency,
            total_minor=top_up.total_minor,
            description=f"Auto-recharge {format_minor(top_up.amount_minor, top_up.currency)}",
        )
    )
    settle(gateway.name, fact, now=now)
    top_up.refresh_from_db()
    if top_up.state == TopUpState.FAILED:
        _pause(organization_id, top_up.failure or "The card was refused.", now)
    return top_up


def _claim(organization_id: int, now: datetime) -> TopUp | None:
    """The open charge, or a new one if the credit is low."""
    try:
        with transaction.atomic():
            lock_account(organization_id)
            under_way = TopUp.objects.filter(
                organization_id=organization_id, kind=TopUpKind.RECHARGE, state=TopUpState.OPEN
            ).first()
            if under_way is not None:
                return under_way
            return _new_charge(organization_id, now)
    except IntegrityError:
        # Another process made it between our look and our insert.
        return None


def _new_charge(organization_id: int, now: datetime) -> TopUp | None:
    rule = AutoRecharge.objects.filter(organization_id=organization_id, is_enabled=True, paused_at=None).first()
    account = account_of(organization_id)
    if rule is None or not account.stripe_payment_method_id:
        return None
    balance = ledger.balance(organization_id)
    amount_minor = amount_to_charge(
        rule,
        # Towards less, so that the rest of a cent does not leave it below the threshold.
        available_minor=balance.available_nano // nano_per_minor(account.currency),
        spent_minor=spent_this_month_minor(organization_id, now),
    )
    if amount_minor == 0:
        return None
    number = TopUp.objects.filter(organization_id=organization_id, kind=TopUpKind.RECHARGE).count() + 1
    return make_top_up(
        organization_id=organization_id,
        kind=TopUpKind.RECHARGE,
        amount_minor=amount_minor,
        key=f"recharge:{organization_id}:{number}",
        keeps_card=False,
        actor_id=None,
    )


def _pause(organization_id: int, reason: str, now: datetime) -> None:
    AutoRecharge.objects.filter(organization_id=organization_id, paused_at__isnull=True).update(
        paused_at=now, paused_reason=reason[:300]
    )
    logger.warning("auto_recharge_paused organization_id=%s", organization_id)
