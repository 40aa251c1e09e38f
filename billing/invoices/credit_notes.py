"""Credit notes: a part of an issued invoice taken back, on paper and in the ledger."""

from __future__ import annotations

import logging
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.accounts.services import lock_account
from billing.errors import CreditNoteRefused, KeyReused
from billing.invoices.models import OPEN_STATUSES, CreditNote, CreditNoteEffect, Invoice, InvoiceStatus
from billing.invoices.selectors import credited_minor, due_minor
from billing.invoices.services import mark_paid, next_number
from billing.ledger.models import AccountKind, TransactionKind
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.reasons import Reason
from billing.ledger.signals import announce
from billing.ledger.wallet import lock_wallet
from billing.money import divide_half_even, format_minor, from_minor

logger = logging.getLogger(__name__)


@transaction.atomic
def issue_credit_note(
    *, invoice: Invoice, total_minor: int, reason: str, key: str, actor_id: int | None, now: datetime | None = None
) -> CreditNote:
    """Take back `total_minor`, tax included in the invoice's proportion. A repeat under the key returns the note.

    Of an open invoice less is to be paid, and nothing left makes it paid; of a paid one the money goes back. After the
    commit the note is made at the payment provider. More than what is left of the invoice is refused.
    """
    now = now or timezone.now()
    lock_account(invoice.organization_id)
    repeated = CreditNote.objects.filter(key=key).first()
    if repeated is not None:
        if (repeated.invoice_id, repeated.total_minor) != (invoice.id, total_minor):
            raise KeyReused(key, "credit note")
        return repeated
    invoice = Invoice.objects.select_for_update().get(id=invoice.id)
    effect = _effect_on(invoice)
    left_minor = invoice.total_minor - credited_minor(invoice)
    if not 0 < total_minor <= left_minor:
        left = format_minor(left_minor, invoice.currency)
        raise CreditNoteRefused(
            _("%(left)s of invoice %(invoice)s can still be credited; enter an amount up to that.")
            % {"left": left, "invoice": invoice}
        )
    note = CreditNote(
        invoice=invoice,
        key=key,
        effect=effect,
        tax_minor=_tax_of(invoice, total_minor, is_rest=total_minor == left_minor),
        reason=reason,
        actor_id=actor_id,
        issued_at=now,
    )
    note.amount_minor = total_minor - note.tax_minor
    note.number = next_number(settings.CREDIT_NOTE_NUMBER_PREFIX)
    note.save()
    _post_note(note)
    if effect == CreditNoteEffect.REDUCES and due_minor(invoice) == 0:
        mark_paid(invoice, now=now)
    transaction.on_commit(lambda: _enqueue_push(note.id), robust=True)
    logger.info("credit_note_issued number=%s invoice=%s total_minor=%s", note.number, invoice.number, total_minor)
    return note


def _effect_on(invoice: Invoice) -> CreditNoteEffect:
    if invoice.status == InvoiceStatus.PAID:
        return CreditNoteEffect.REFUNDS
    if invoice.status in OPEN_STATUSES:
        return CreditNoteEffect.REDUCES
    raise CreditNoteRefused(
        _("Invoice %(invoice)s is %(status)s; only an open or paid one can be credited.")
        % {"invoice": invoice, "status": invoice.status}
    )


def _tax_of(invoice: Invoice, total_minor: int, *, is_rest: bool) -> int:
    """The tax in a part of the invoice; the last part takes what is left of it, so that all parts are the whole."""
    if is_rest:
        return invoice.tax_minor - sum(note.tax_minor for note in invoice.credit_notes.all())
    return divide_half_even(total_minor * invoice.tax_minor, invoice.total_minor)


def _post_note(note: CreditNote) -> None:
    invoice = note.invoice
    net_nano = from_minor(note.amount_minor, invoice.currency)
    tax_nano = from_minor(note.tax_minor, invoice.currency)
    wallet = lock_wallet(invoice.organization_id)
    reduces = note.effect == CreditNoteEffect.REDUCES
    payer = AccountKind.RECEIVABLE if reduces else AccountKind.CASH
    entries = [
        Entry(wallet.accounts[payer], net_nano + tax_nano),
        Entry(wallet.accounts[AccountKind.ADJUSTMENTS], -net_nano),
    ]
    if tax_nano:
        entries.append(Entry(wallet.accounts[AccountKind.TAX], -tax_nano))
    post(
        [
            Posting(
                TransactionKind.CREDIT_NOTE,
                f"credit-note:{note.number}",
                tuple(entry for entry in entries if entry.amount_nano),
                reason=Reason.CREDIT_NOTE.about(f"{note.number}: {note.reason}"),
                actor_id=note.actor_id,
            )
        ]
    )
    if reduces:
        announce(invoice.organization_id, net_nano + tax_nano)


def _enqueue_push(credit_note_id: int) -> None:
    from billing.tasks import push_credit_note

    push_credit_note.delay(credit_note_id)
