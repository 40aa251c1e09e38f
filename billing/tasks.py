"""Celery: load, call one service, retry. Every task may run twice: the services are safe to repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import shared_task
from django.utils import timezone

from billing.credits import recharge as auto_recharge
from billing.credits import refunds
from billing.dunning import services as dunning
from billing.errors import PaymentProviderError
from billing.exports import services as exports
from billing.invoices import runs
from billing.ledger.services import expire_credits as expire_due_credits
from billing.payments import events
from billing.payments import services as payments
from billing.payments.configuration import takes_payments
from billing.pricing.volume import apply_volume_tiers
from billing.reconciliation import rollups as match_rollups
from billing.reconciliation.periods import forget_receipts
from billing.rollups import services as rollups
from billing.tax import checks as tax_checks
from billing.tax.vies import RegisterUnavailable
from billing.usage.partitions import make_partitions
from billing.usage.retention import retire_due

_RETRIES = 8


@shared_task(name="billing.tasks.run_month")  # type: ignore[untyped-decorator]  # Celery has no types
def run_month(period: str | None = None, preview: bool = False) -> None:
    """Invoice one month, or without a period each account's last month once it is due."""
    if period is None:
        runs.run_due()
    else:
        runs.run_month(period, preview)


def _with_retries(task: Any, act: Callable[[], object]) -> None:  # task is Celery's
    """What the provider may yet do is tried again after 10 s, 20 s, ... up to about 20 minutes."""
    try:
        act()
    except PaymentProviderError as error:
        if error.is_retryable:
            raise task.retry(exc=error, countdown=10 * 2**task.request.retries) from error


@shared_task(name="billing.tasks.push_invoice", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def push_invoice(self: Any, invoice_id: int) -> None:
    """One invoice to the payment provider, which sends it."""
    _with_retries(self, lambda: payments.push_invoice(invoice_id))


@shared_task(name="billing.tasks.void_at_provider", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def void_at_provider(self: Any, invoice_id: int) -> None:
    """A voided invoice cannot be paid at the provider either."""
    _with_retries(self, lambda: payments.void_at_provider(invoice_id))


@shared_task(name="billing.tasks.give_up_at_provider", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def give_up_at_provider(self: Any, invoice_id: int) -> None:
    """The provider stops asking for an invoice that was written off."""
    _with_retries(self, lambda: payments.give_up_at_provider(invoice_id))


@shared_task(name="billing.tasks.push_credit_note", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def push_credit_note(self: Any, credit_note_id: int) -> None:
    """One credit note to the payment provider, after its invoice."""
    _with_retries(self, lambda: payments.push_credit_note(credit_note_id))


@shared_task(name="billing.tasks.send_refund", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def send_refund(self: Any, refund_id: int) -> None:
    """The money of a purchase back to its payer."""
    _with_retries(self, lambda: refunds.send_refund(refund_id))


@shared_task(name="billing.tasks.work_event", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def work_event(self: Any, event_id: int) -> None:
    """One kept event of the provider to its effect."""
    _with_retries(self, lambda: events.work_event(event_id))


@shared_task(name="billing.tasks.work_dunning_step", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def work_dunning_step(self: Any, step_id: int, tries_card: bool) -> None:
    """The card and the letter of one step."""
    _with_retries(self, lambda: dunning.work_step(step_id, tries_card=tries_card, now=timezone.now()))


@shared_task(name="billing.tasks.recharge", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def recharge(self: Any, organization_id: int) -> None:
    _with_retries(self, lambda: auto_recharge.recharge(organization_id))


@shared_task(name="billing.tasks.make_export")  # type: ignore[untyped-decorator]  # Celery has no types
def make_export(export_id: int) -> None:
    exports.make(export_id)


@shared_task(name="billing.tasks.push_pending")  # type: ignore[untyped-decorator]  # Celery has no types
def push_pending() -> None:
    """Enqueue what the provider should have and has not, e.g. after a broker was away."""
    for invoice_id in payments.invoices_to_push():
        push_invoice.delay(invoice_id)
    for credit_note_id in payments.credit_notes_to_push():
        push_credit_note.delay(credit_note_id)
    for refund_id in refunds.refunds_to_send():
        send_refund.delay(refund_id)
    for step_id, tries_card in dunning.steps_to_work():
        work_dunning_step.delay(step_id, tries_card)


@shared_task(name="billing.tasks.work_pending_events")  # type: ignore[untyped-decorator]  # Celery has no types
def work_pending_events() -> None:
    """Enqueue the kept events that no worker came for."""
    for event_id in events.events_to_work(now=timezone.now()):
        work_event.delay(event_id)


@shared_task(name="billing.tasks.recharge_due")  # type: ignore[untyped-decorator]  # Celery has no types
def recharge_due() -> None:
    """Charge the card of each organization whose credit is below its threshold."""
    if takes_payments():
        for organization_id in auto_recharge.organizations_to_recharge():
            recharge.delay(organization_id)


@shared_task(name="billing.tasks.run_dunning")  # type: ignore[untyped-decorator]  # Celery has no types
def run_dunning() -> None:
    dunning.run_dunning(now=timezone.now())


@shared_task(name="billing.tasks.forget_exports")  # type: ignore[untyped-decorator]  # Celery has no types
def forget_exports() -> None:
    """Remove files past their time, and take up exports that a killed worker left."""
    for export_id in exports.forget_and_find_left(now=timezone.now()):
        make_export.delay(export_id)


@shared_task(name="billing.tasks.expire_credits")  # type: ignore[untyped-decorator]  # Celery has no types
def expire_credits() -> None:
    expire_due_credits(now=timezone.now())


@shared_task(name="billing.tasks.keep_usage_tables")  # type: ignore[untyped-decorator]  # Celery has no types
def keep_usage_tables() -> None:
    """Make the coming months' partitions; forget receipts of months that were closed long ago, and old records."""
    now = timezone.now()
    make_partitions(now=now)
    forget_receipts(now=now)
    retire_due(now=now)


@shared_task(name="billing.tasks.apply_volume_tiers")  # type: ignore[untyped-decorator]  # Celery has no types
def apply_volume_prices() -> None:
    """This month's discount for what was used last month."""
    apply_volume_tiers(now=timezone.now())


@shared_task(name="billing.tasks.check_tax_id", bind=True, max_retries=_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def check_tax_id(self: Any, organization_id: int) -> None:
    """Ask the register for the organization's tax number, if it is configured."""
    try:
        tax_checks.check_tax_id(organization_id=organization_id, now=timezone.now())
    except RegisterUnavailable as error:
        raise self.retry(exc=error, countdown=30 * 2**self.request.retries) from error


@shared_task(name="billing.tasks.check_tax_ids")  # type: ignore[untyped-decorator]  # Celery has no types
def check_tax_ids() -> None:
    """Enqueue the numbers that nobody asked for lately."""
    for organization_id in tax_checks.organizations_to_check(now=timezone.now()):
        check_tax_id.delay(organization_id)


@shared_task(name="billing.tasks.take_rollups")  # type: ignore[untyped-decorator]  # Celery has no types
def take_rollups() -> None:
    """Add what has ended to the rollups. Sums are exact without it, only slower to read."""
    rollups.take_pending(now=timezone.now())


@shared_task(name="billing.tasks.roll_match_rates")  # type: ignore[untyped-decorator]  # Celery has no types
def roll_match_rates() -> None:
    """Roll up the match rates of hours that are over. Rates are exact without it, only slower to read."""
    match_rollups.roll_hours(now=timezone.now())


@shared_task(name="billing.tasks.forget_rollup_minutes")  # type: ignore[untyped-decorator]  # Celery has no types
def forget_rollup_minutes() -> None:
    rollups.forget_minutes(now=timezone.now())
