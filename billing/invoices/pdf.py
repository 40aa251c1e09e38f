"""An invoice, and a credit note, as PDF: in the payer's language, as many pages as its lines need."""

from __future__ import annotations

from reportlab.lib.units import mm
from reportlab.platypus import KeepTogether, Spacer

from billing.invoices import paper
from billing.invoices.models import CreditNote, Invoice
from billing.invoices.selectors import InvoiceDocument, credit_note_document, document

_COLUMNS = (paper.WIDTH - 92 * mm, 28 * mm, 36 * mm, 28 * mm)


def render(invoice: Invoice) -> bytes:
    """The invoice. Drafts and void ones say so across the page, so that none is mistaken for an invoice."""
    paper.register_fonts()
    printed = document(invoice)
    say = printed.wording.say
    facts = [
        (say("number"), printed.number),
        (say("issued"), printed.issued),
        (say("due"), printed.due if invoice.total_minor else ""),
        (say("period"), printed.period),
        (say("currency"), printed.currency),
        (say("status"), printed.status),
    ]
    story = [
        paper.header(printed),
        Spacer(1, 9 * mm),
        paper.parties(printed, facts),
        Spacer(1, 9 * mm),
        _lines(printed),
        Spacer(1, 5 * mm),
        KeepTogether([_sums(printed), Spacer(1, 9 * mm), *_notes(printed)]),
    ]
    return paper.build(printed, story, watermark=printed.watermark)


def _lines(printed: InvoiceDocument) -> paper.Part:
    say = printed.wording.say
    rows = [
        [
            paper.text(line.description),
            paper.text(line.quantity, right=True),
            paper.text(line.unit_price, right=True),
            paper.text(line.amount, right=True),
        ]
        for line in printed.lines
    ] or [[paper.text(say("no_usage"), color=paper.GREY), "", "", ""]]
    return paper.listing([say(name) for name in ("description", "quantity", "unit_price", "amount")], rows, _COLUMNS)


def _sums(printed: InvoiceDocument) -> paper.Part:
    say = printed.wording.say
    rows = [(say("usage"), printed.subtotal)]
    if printed.credit:
        rows.append((printed.credit_label, printed.credit))
    if printed.tax:
        rows.append((printed.tax_label, printed.tax))
    return paper.sums(rows, (say("total"), printed.total))


def _notes(printed: InvoiceDocument) -> list[paper.Part]:
    notes = [paper.text(printed.note, size=9.5, bold=True), Spacer(1, 2 * mm)]
    if printed.tax_note:
        notes += [paper.text(printed.tax_note), Spacer(1, 2 * mm)]
    exact = printed.wording.say("exact", amount=printed.usage_exact)
    return [*notes, paper.text(exact, size=8, color=paper.GREY)]


def render_credit_note(note: CreditNote) -> bytes:
    paper.register_fonts()
    printed = credit_note_document(note)
    say = printed.wording.say
    facts = [
        (say("note_number"), printed.number),
        (say("for_invoice"), printed.invoice_number),
        (say("issued"), printed.issued),
        (say("currency"), printed.currency),
    ]
    rows = [[paper.text(printed.reason), paper.text(printed.net, right=True)]]
    story = [
        paper.header(printed),
        Spacer(1, 9 * mm),
        paper.parties(printed, facts),
        Spacer(1, 9 * mm),
        paper.listing([say("reason"), say("amount")], rows, (paper.WIDTH - 38 * mm, 38 * mm)),
        Spacer(1, 5 * mm),
        KeepTogether(
            [
                paper.sums(
                    [(printed.tax_label, printed.tax)] if printed.tax else [], (say("note_total"), printed.total)
                ),
                Spacer(1, 9 * mm),
                paper.text(printed.note, size=9.5, bold=True),
            ]
        ),
    ]
    return paper.build(printed, story)
