"""Letters about unpaid invoices: short, with the paper attached, dates and money as the payer writes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from billing.dunning.models import DunningStep
from billing.dunning.policy import suspension_at
from billing.invoices import mail
from billing.invoices.selectors import due_minor
from billing.invoices.wording import Wording
from billing.payments.services import CARD_CHARGED, CARD_REFUSED


def send(step: DunningStep, done: Mapping[str, datetime]) -> None:
    """The letter of a step."""
    invoice = step.invoice
    if invoice.due_at is None:
        raise ValueError(f"Invoice {invoice.id} is not issued; nothing is due on it.")
    wording, zone = Wording(invoice.language), ZoneInfo(invoice.time_zone)
    push = getattr(invoice, "push", None)
    context = {
        "step": step.name,
        "amount": wording.minor(due_minor(invoice), invoice.currency),
        "suspension": wording.day(suspension_at(invoice.due_at, done), zone),
        "pay_url": push.hosted_url if push else "",
        "was_charged": step.payment_note == CARD_CHARGED,
        "refusal": step.payment_note.removeprefix(CARD_REFUSED) if step.payment_note.startswith(CARD_REFUSED) else "",
    }
    mail.send("dunning", invoice, context)
