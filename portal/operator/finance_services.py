"""What operators do to money, each with its audit event in the same transaction."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal

from django.db import transaction
from django.utils import timezone

from billing.accounts import selectors as accounts
from billing.accounts import services as billing_accounts
from billing.credits import promo, refunds
from billing.credits.models import PromoCode, TopUp
from billing.fees import services as fees
from billing.invoices import credit_notes
from billing.invoices import services as invoices
from billing.invoices.models import Invoice
from billing.payments import booking, events
from billing.payments.models import PaymentEvent
from billing.tax import services as tax
from portal.audit.services import record_event
from portal.organizations.models import Organization
from portal.users.models import User


@transaction.atomic
def make_promo_code(
    *,
    code: str,
    description: str,
    amount_nano: int,
    currency: str,
    max_redemptions: int,
    valid_until: date | None,
    credit_days: int | None,
    actor: User,
) -> PromoCode:
    """Good from now on, until the day `valid_until` begins in UTC."""
    made = promo.make_code(
        code=code,
        description=description,
        amount_nano=amount_nano,
        currency=currency,
        max_redemptions=max_redemptions,
        valid_from=timezone.now(),
        valid_until=timezone.make_aware(datetime.combine(valid_until, time())) if valid_until else None,
        credit_days=credit_days,
        actor_id=actor.id,
    )
    after = {"amount_nano": amount_nano, "currency": currency, "max_redemptions": max_redemptions}
    record_event(organization_id=None, actor=actor, action="promo_code.made", subject=made, after=after)
    return made


@transaction.atomic
def set_promo_code_active(*, promo_code: PromoCode, is_active: bool, actor: User) -> None:
    promo.set_active(promo_code_id=promo_code.id, is_active=is_active)
    action = "promo_code.switched_on" if is_active else "promo_code.switched_off"
    record_event(organization_id=None, actor=actor, action=action, subject=promo_code)


@transaction.atomic
def set_tax_rate(*, country: str, name: str, percent: Decimal, effective_from: date, actor: User) -> None:
    rate = tax.set_rate(country=country, name=name, percent=percent, effective_from=effective_from, actor_id=actor.id)
    after = {"country": rate.country, "name": name, "percent": str(percent), "from": effective_from.isoformat()}
    label = f"{rate.country} {name} {rate.percent.normalize():f} %, {effective_from.isoformat()}"
    record_event(organization_id=None, actor=actor, action="tax_rate.set", subject=rate, label=label, after=after)


@transaction.atomic
def set_exemption(*, organization: Organization, tax_exemption: str, actor: User) -> None:
    before = accounts.account_of(organization.id).tax_exemption
    billing_accounts.change_tax_exemption(organization_id=organization.id, tax_exemption=tax_exemption)
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="billing.tax_exemption_changed",
        subject=organization,
        before={"tax_exemption": before},
        after={"tax_exemption": tax_exemption},
    )


@transaction.atomic
def add_fee(
    *, organization: Organization, name: str, quantity: int, unit_amount_minor: int, starts_on: date, actor: User
) -> None:
    fee = fees.add_fee(
        organization_id=organization.id,
        name=name,
        quantity=quantity,
        unit_amount_minor=unit_amount_minor,
        starts_on=starts_on,
        now=timezone.now(),
        actor_id=actor.id,
    )
    after = {"quantity": quantity, "unit_amount_minor": unit_amount_minor, "starts_on": starts_on.isoformat()}
    record_event(organization_id=organization.id, actor=actor, action="fee.agreed", subject=fee, after=after)


@transaction.atomic
def end_fee(*, organization: Organization, fee_id: int, ends_on: date, actor: User) -> None:
    fee = fees.end_fee(fee_id=fee_id, ends_on=ends_on, now=timezone.now())
    after = {"ends_on": ends_on.isoformat()}
    record_event(organization_id=organization.id, actor=actor, action="fee.ended", subject=fee, after=after)


@transaction.atomic
def refund(*, top_up: TopUp, amount_minor: int, reason: str, key: str, actor: User) -> None:
    made = refunds.start_refund(top_up=top_up, amount_minor=amount_minor, reason=reason, key=key, actor_id=actor.id)
    record_event(
        organization_id=top_up.organization_id,
        actor=actor,
        action="credit.refunded",
        subject=made,
        label=str(top_up),
        after={"amount_minor": made.amount_minor, "tax_minor": made.tax_minor},
        reason=reason,
        once=True,
    )


@transaction.atomic
def credit_invoice(*, invoice: Invoice, total_minor: int, reason: str, key: str, actor: User) -> None:
    note = credit_notes.issue_credit_note(
        invoice=invoice, total_minor=total_minor, reason=reason, key=key, actor_id=actor.id
    )
    record_event(
        organization_id=invoice.organization_id,
        actor=actor,
        action="invoice.credited",
        subject=note,
        after={"invoice": invoice.number, "total_minor": total_minor},
        reason=reason,
        once=True,
    )


@transaction.atomic
def void_invoice(*, invoice: Invoice, reason: str, actor: User) -> None:
    void = invoices.void_invoice(invoice, reason=reason)
    record_event(
        organization_id=invoice.organization_id, actor=actor, action="invoice.voided", subject=void, reason=reason
    )


@transaction.atomic
def write_off(*, invoice: Invoice, reason: str, actor: User) -> None:
    lost = invoices.write_off(invoice, actor_id=actor.id, reason=reason)
    record_event(
        organization_id=invoice.organization_id, actor=actor, action="invoice.written_off", subject=lost, reason=reason
    )


@transaction.atomic
def record_payment(*, invoice: Invoice, reference: str, actor: User) -> None:
    paid = booking.record_payment(invoice, reference=reference, actor_id=actor.id, now=timezone.now())
    record_event(
        organization_id=invoice.organization_id,
        actor=actor,
        action="invoice.payment_recorded",
        subject=paid,
        after={"reference": reference},
    )


@transaction.atomic
def replay_event(*, event: PaymentEvent, actor: User) -> None:
    record_event(organization_id=None, actor=actor, action="payment_event.replayed", subject=event)
    transaction.on_commit(lambda: events.replay_event(event.id), robust=True)
