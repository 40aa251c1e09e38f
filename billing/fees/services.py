"""Agrees and ends fixed fees."""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

from django.db import transaction

from billing.accounts.models import BillingAccount
from billing.accounts.services import lock_account
from billing.errors import InvalidFee
from billing.fees.models import RecurringFee


@transaction.atomic
def add_fee(
    *,
    organization_id: int,
    name: str,
    quantity: int,
    unit_amount_minor: int,
    starts_on: date,
    now: datetime,
    actor_id: int | None,
) -> RecurringFee:
    """A fee from a day on, invoiced with each month's usage and never taken from credit.

    Refused for a day of a month that is over, whose invoice may be out, and for an organization that may owe nothing.
    """
    account = lock_account(organization_id)
    if account.credit_limit_nano == 0:
        raise InvalidFee("organization", "A prepaid organization owes nothing; give it a credit limit first.")
    if quantity < 1 or unit_amount_minor < 1:
        raise InvalidFee("unit_amount_minor", "Quantity and amount must be above zero.")
    _require_open_month("starts_on", starts_on, account, now)
    return RecurringFee.objects.create(
        organization_id=organization_id,
        name=name,
        quantity=quantity,
        unit_amount_minor=unit_amount_minor,
        currency=account.currency,
        starts_on=starts_on,
        actor_id=actor_id,
    )


@transaction.atomic
def end_fee(*, fee_id: int, ends_on: date, now: datetime) -> RecurringFee:
    """`ends_on` is the first day without it. A repeat for the same day changes nothing."""
    fee = RecurringFee.objects.get(id=fee_id)
    account = lock_account(fee.organization_id)
    fee = RecurringFee.objects.select_for_update().get(id=fee_id)
    if fee.ends_on == ends_on:
        return fee
    if fee.ends_on is not None:
        raise InvalidFee("ends_on", f"{fee.name} ends on {fee.ends_on} already.")
    if ends_on <= fee.starts_on:
        raise InvalidFee("ends_on", f"{fee.name} starts on {fee.starts_on}; it must end on a later day.")
    _require_open_month("ends_on", ends_on, account, now)
    fee.ends_on = ends_on
    fee.save(update_fields=["ends_on"])
    return fee


@transaction.atomic
def change_quantity(*, fee_id: int, quantity: int, on: date, now: datetime, actor_id: int | None) -> RecurringFee:
    """Other seats from a day on: the fee ends and a new one of the same price starts, so each day is billed once."""
    old = end_fee(fee_id=fee_id, ends_on=on, now=now)
    return add_fee(
        organization_id=old.organization_id,
        name=old.name,
        quantity=quantity,
        unit_amount_minor=old.unit_amount_minor,
        starts_on=on,
        now=now,
        actor_id=actor_id,
    )


def _require_open_month(field: str, day: date, account: BillingAccount, now: datetime) -> None:
    first_open = now.astimezone(ZoneInfo(account.time_zone)).date().replace(day=1)
    if day < first_open:
        raise InvalidFee(field, f"{day} is in a month that is over; use {first_open} or later.")
