"""Celery: load, call one service, retry. Every task may run twice: the services are safe to repeat."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.utils import timezone

from billing.errors import PaymentProviderError
from billing.invoices import services as invoices
from billing.ledger.services import expire_credits as expire_due_credits
from billing.payments import services as payments
from billing.rollups import services as rollups

_PUSH_RETRIES = 8


@shared_task(name="billing.tasks.run_month")  # type: ignore[untyped-decorator]  # Celery has no types
def run_month(period: str | None = None, preview: bool = False) -> None:
    """Invoice one month, or without a period each account's last month once it is due."""
    if period is None:
        invoices.run_due()
    else:
        invoices.run_month(period, preview)


@shared_task(name="billing.tasks.push_invoice", bind=True, max_retries=_PUSH_RETRIES)  # type: ignore[untyped-decorator]  # Celery has no types
def push_invoice(self: Any, invoice_id: int) -> None:  # self is Celery's task
    """One invoice to the payment provider; waits 10 s, 20 s, ... up to about 20 minutes between tries."""
    try:
        payments.push_invoice(invoice_id)
    except PaymentProviderError as error:
        if error.is_retryable:
            raise self.retry(exc=error, countdown=10 * 2**self.request.retries) from error


@shared_task(name="billing.tasks.push_pending")  # type: ignore[untyped-decorator]  # Celery has no types
def push_pending() -> None:
    """Enqueue every final invoice that the provider does not have, e.g. after a broker was away."""
    for invoice_id in payments.invoices_to_push():
        push_invoice.delay(invoice_id)


@shared_task(name="billing.tasks.expire_credits")  # type: ignore[untyped-decorator]  # Celery has no types
def expire_credits() -> None:
    expire_due_credits(now=timezone.now())


@shared_task(name="billing.tasks.take_rollups")  # type: ignore[untyped-decorator]  # Celery has no types
def take_rollups() -> None:
    """Add what has ended to the rollups. Sums are exact without it, only slower to read."""
    rollups.take_pending(now=timezone.now())


@shared_task(name="billing.tasks.forget_rollup_minutes")  # type: ignore[untyped-decorator]  # Celery has no types
def forget_rollup_minutes() -> None:
    rollups.forget_minutes(now=timezone.now())
