"""Reminds, tries the kept card, warns, suspends; and releases when the money is there."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction

from billing.accounts.models import BillingAccount
from billing.accounts.services import lock_account
from billing.dunning import mails, policy
from billing.dunning.models import DunningStep
from billing.dunning.signals import suspension_due, suspension_over
from billing.errors import BillingError
from billing.invoices.models import OPEN_STATUSES, Invoice
from billing.invoices.selectors import due_minor
from billing.invoices.services import mark_past_due
from billing.invoices.signals import invoice_settled
from billing.payments.services import try_kept_card

logger = logging.getLogger(__name__)


def run_dunning(*, now: datetime) -> int:
    """Take the next step on every unpaid invoice; returns how many steps were taken. Hourly is enough.

    Each invoice is a transaction of its own, and one that fails stops no other.
    """
    mark_past_due(now=now)
    earliest = now - policy.STEPS[0].after_due
    unpaid = Invoice.objects.filter(status__in=OPEN_STATUSES, total_minor__gt=0, due_at__lte=earliest)
    taken = 0
    for invoice_id in list(unpaid.order_by("id").values_list("id", flat=True)):
        try:
            taken += _take_step(invoice_id, now)
        except BillingError:
            logger.exception("dunning_failed invoice_id=%s", invoice_id)
    return taken


@transaction.atomic
def _take_step(invoice_id: int, now: datetime) -> bool:
    organization_id = Invoice.objects.values_list("organization_id", flat=True).get(id=invoice_id)
    lock_account(organization_id)
    invoice = Invoice.objects.select_for_update(of=("self",)).get(id=invoice_id)
    if invoice.status not in OPEN_STATUSES or invoice.due_at is None or due_minor(invoice) == 0:
        return False
    step = policy.next_step(invoice.due_at, steps_of(invoice), now)
    if step is None:
        return False
    row = DunningStep.objects.create(invoice=invoice, name=step.name, done_at=now)
    if step.suspends:
        _suspend(invoice, now)
    transaction.on_commit(partial(_enqueue, row.id, step.tries_card), robust=True)
    logger.info("dunning_step invoice=%s step=%s", invoice.number, step.name)
    return True


def steps_of(invoice: Invoice) -> dict[str, datetime]:
    """When each step was taken."""
    return dict(DunningStep.objects.filter(invoice=invoice).order_by("id").values_list("name", "done_at"))


def _suspend(invoice: Invoice, now: datetime) -> None:
    reason = f"Invoice {invoice.number} is unpaid."
    answers = suspension_due.send(sender=None, organization_id=invoice.organization_id, reason=reason)
    if any(answer for _, answer in answers):
        BillingAccount.objects.filter(organization_id=invoice.organization_id).update(suspended_for_debt_at=now)


def release_if_paid(*, organization_id: int, now: datetime, **signal: Any) -> None:
    """Lift the suspension once no invoice is left that called for it; in the transaction of the payment."""
    account = lock_account(organization_id)
    if account.suspended_for_debt_at is None:
        return
    owing = Invoice.objects.filter(
        organization_id=organization_id, status__in=OPEN_STATUSES, dunning_steps__name=policy.STEPS[-1].name
    )
    if owing.exists():
        return
    account.suspended_for_debt_at = None
    account.save(update_fields=["suspended_for_debt_at"])
    suspension_over.send(sender=None, organization_id=organization_id, reason="What was unpaid is paid.")


invoice_settled.connect(release_if_paid, dispatch_uid="billing.dunning")


def work_step(step_id: int, *, tries_card: bool, now: datetime) -> None:
    """What a step does outside of the database: try the card, then write to the payer if it is still due.

    A repeat neither charges nor mails twice, save for a crash in the moment between mail and mark.
    """
    step = DunningStep.objects.select_related("invoice").get(id=step_id)
    if step.mailed_at is not None:
        return
    if tries_card and not step.payment_note:
        step.payment_note = try_kept_card(step.invoice_id, key=f"dunning-{step.id}")
        step.save(update_fields=["payment_note"])
        step.invoice.refresh_from_db()
    if due_minor(step.invoice):
        mails.send(step, steps_of(step.invoice))
    step.mailed_at = now
    step.save(update_fields=["mailed_at"])


def steps_to_work() -> list[tuple[int, bool]]:
    """Steps whose mail did not go out, e.g. after a broker was away."""
    tries = {step.name: step.tries_card for step in policy.STEPS}
    rows = DunningStep.objects.filter(mailed_at__isnull=True).order_by("id").values_list("id", "name")
    return [(step_id, tries.get(name, False)) for step_id, name in rows]


def _enqueue(step_id: int, tries_card: bool) -> None:
    from billing.tasks import work_dunning_step

    work_dunning_step.delay(step_id, tries_card)
