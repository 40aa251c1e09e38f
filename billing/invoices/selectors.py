"""Reads of invoices, and the printed form that page, PDF and mail share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db.models import Count, QuerySet, Sum

from billing.invoices.models import (
    OPEN_STATUSES,
    CreditNote,
    CreditNoteEffect,
    Invoice,
    InvoiceLine,
    InvoiceStatus,
    LineKind,
    TokenKind,
)
from billing.invoices.wording import Wording
from billing.tax.models import TaxKind


def invoices_of(organization_id: int) -> QuerySet[Invoice]:
    """Newest first, drafts included."""
    return Invoice.objects.filter(organization_id=organization_id).select_related("push")


def invoices_in(period: str) -> list[Invoice]:
    """All organizations' invoices of the month `YYYY-MM`, void ones included; for the operator."""
    return list(invoices_page(period))


def invoices_page(period: str) -> QuerySet[Invoice]:
    """The same, to be cut into pages."""
    return Invoice.objects.filter(period=period).select_related("push").order_by("organization_id", "id")


@dataclass(frozen=True)
class PeriodTotals:
    """How many invoices of a month stand in which state, and their totals by currency, void ones left out."""

    states: dict[str, int]
    total_minor: dict[str, int]


def totals_in(period: str) -> PeriodTotals:
    found = PeriodTotals({}, {})
    rows = Invoice.objects.filter(period=period).order_by().values_list("status", "currency")
    for status, currency, count, total_minor in rows.annotate(count=Count("id"), total=Sum("total_minor")):
        found.states[status] = found.states.get(status, 0) + count
        if status != InvoiceStatus.VOID:
            found.total_minor[currency] = found.total_minor.get(currency, 0) + total_minor
    return found


def find_invoice(invoice_id: int) -> Invoice | None:
    """For whoever checks afterwards that the asker may see it."""
    return Invoice.objects.filter(id=invoice_id).select_related("push").first()


def credit_notes_of(invoice: Invoice) -> list[CreditNote]:
    return list(invoice.credit_notes.all())


def all_credit_notes_of(organization_id: int) -> QuerySet[CreditNote]:
    """Of all invoices, with these."""
    return CreditNote.objects.filter(invoice__organization_id=organization_id).select_related("invoice")


def find_credit_note(credit_note_id: int) -> CreditNote | None:
    """For whoever checks afterwards that the asker may see it."""
    return CreditNote.objects.filter(id=credit_note_id).select_related("invoice").first()


def credited_minor(invoice: Invoice, effect: CreditNoteEffect | None = None) -> int:
    """Σ of its credit notes with their tax, of one effect or of all."""
    notes = invoice.credit_notes.all()
    if effect is not None:
        notes = notes.filter(effect=effect)
    sums = notes.aggregate(amount=Sum("amount_minor"), tax=Sum("tax_minor"))
    return (sums["amount"] or 0) + (sums["tax"] or 0)


def due_minor(invoice: Invoice) -> int:
    """What is still to be paid."""
    if invoice.status not in (*OPEN_STATUSES, InvoiceStatus.UNCOLLECTIBLE):
        return 0
    return invoice.total_minor - credited_minor(invoice, CreditNoteEffect.REDUCES)


@dataclass(frozen=True)
class DocumentLine:
    description: str
    quantity: str
    unit_price: str
    amount: str


@dataclass(frozen=True)
class InvoiceDocument:
    """An invoice as it is read: texts only, in one language, dates in the billing zone."""

    wording: Wording
    title: str
    # Empty, like the dates, until the invoice is issued.
    number: str
    status: str
    issuer: list[str]
    issuer_tax_id: str
    footer: list[str]
    bill_to: list[str]
    bill_to_tax_id: str
    email: str
    period: str
    issued: str
    due: str
    currency: str
    lines: list[DocumentLine]
    # Σ records, unrounded: what the ledger says.
    usage_exact: str
    subtotal: str
    # Empty when no credit was used.
    credit_label: str
    credit: str
    # Empty when no tax is charged.
    tax_label: str
    tax: str
    tax_note: str
    total: str
    is_draft: bool
    watermark: str
    note: str


def described_lines(invoice: Invoice, language: str = "") -> list[tuple[InvoiceLine, str]]:
    """The lines with what they are for, in one query. Price versions are told apart by their date."""
    wording, zone = Wording(language or invoice.language), ZoneInfo(invoice.time_zone)
    lines = list(invoice.lines.select_related("price"))
    versions: dict[tuple[str, str], set[int | None]] = {}
    for line in lines:
        versions.setdefault((line.model, line.token_kind), set()).add(line.price_id)
    return [
        (line, _description(line, wording, zone, is_versioned=len(versions[line.model, line.token_kind]) > 1))
        for line in lines
    ]


def _description(line: InvoiceLine, wording: Wording, zone: ZoneInfo, *, is_versioned: bool) -> str:
    if line.kind == LineKind.FEE:
        share = wording.say("share", days=line.days, of=line.days_of_month)
        return line.model if line.days == line.days_of_month else f"{line.model}, {share}"
    parts = [line.model, wording.say(line.token_kind)]
    if line.kind != LineKind.USAGE:
        parts.append(wording.say(line.kind))
    if is_versioned and line.price:
        parts.append(wording.say("price_from", day=wording.day(line.price.effective_from, zone)))
    return ", ".join(parts)


def document(invoice: Invoice, language: str = "") -> InvoiceDocument:
    """The printed form; two queries, for the lines and for what was credited.

    A paper or mail is in the payer's language; a page asks for its reader's.
    """
    wording, zone, currency = Wording(language or invoice.language), ZoneInfo(invoice.time_zone), invoice.currency
    is_draft = invoice.status == InvoiceStatus.DRAFT
    return InvoiceDocument(
        wording=wording,
        title=wording.say("preview" if is_draft else "invoice"),
        number=invoice.number or "",
        status=wording.say("state_nothing" if _is_covered(invoice) else f"state_{invoice.status}"),
        issuer=invoice.issuer.splitlines(),
        issuer_tax_id=settings.INVOICE_ISSUER_TAX_ID,
        footer=settings.INVOICE_FOOTER.splitlines(),
        bill_to=invoice.bill_to.splitlines(),
        bill_to_tax_id=invoice.bill_to_tax_id,
        email=invoice.email,
        period=_period(invoice, wording, zone),
        issued=wording.day(invoice.finalized_at, zone),
        due=wording.day(invoice.due_at, zone),
        currency=currency,
        lines=[_document_line(line, text, wording, currency) for line, text in described_lines(invoice, language)],
        usage_exact=wording.nano(invoice.usage_nano, currency),
        subtotal=wording.minor(invoice.subtotal_minor, currency),
        credit_label=wording.say("credit" if invoice.credit_minor >= 0 else "credited"),
        credit=wording.minor(-invoice.credit_minor, currency) if invoice.credit_minor else "",
        tax_label=tax_label(invoice, wording),
        tax=wording.minor(invoice.tax_minor, currency) if invoice.tax_kind == TaxKind.CHARGED else "",
        tax_note=_tax_note(invoice, wording),
        total=wording.minor(invoice.total_minor, currency),
        is_draft=is_draft,
        watermark=_watermark(invoice, wording),
        note=_note(invoice, wording, zone),
    )


def _document_line(line: InvoiceLine, text: str, wording: Wording, currency: str) -> DocumentLine:
    unit_price = wording.nano(line.unit_price_nano, currency)
    quantity = wording.count(line.quantity if line.quantity is not None else line.tokens)
    if line.token_kind == TokenKind.MINIMUM:
        # It tops requests up to the minimum: an amount and no product.
        quantity = ""
    elif line.kind != LineKind.FEE:
        unit_price = f"{unit_price} {wording.say('tokens_per_million')}"
    return DocumentLine(
        description=text,
        quantity=quantity,
        unit_price=unit_price,
        amount=wording.minor(line.amount_minor, currency),
    )


def tax_label(invoice: Invoice, wording: Wording) -> str:
    percent = f"{Decimal(invoice.tax_percent).normalize():f}"
    return f"{invoice.tax_name or wording.say('tax')} {wording.percent(percent)}"


def _tax_note(invoice: Invoice, wording: Wording) -> str:
    if invoice.tax_kind == TaxKind.REVERSE_CHARGE:
        return wording.say("reverse")
    if invoice.tax_kind == TaxKind.EXEMPT:
        return wording.say("exempt", reason=invoice.tax_name)
    return ""


def _is_covered(invoice: Invoice) -> bool:
    return invoice.total_minor == 0 and invoice.status not in (InvoiceStatus.DRAFT, InvoiceStatus.VOID)


def _period(invoice: Invoice, wording: Wording, zone: ZoneInfo) -> str:
    first = wording.day_of_month(invoice.period_start, zone)
    last = wording.day(invoice.period_end - timedelta(microseconds=1), zone)
    return f"{wording.say('to', first=first, last=last)} ({invoice.time_zone})"


def _watermark(invoice: Invoice, wording: Wording) -> str:
    marked = invoice.status in (InvoiceStatus.DRAFT, InvoiceStatus.VOID)
    return wording.say(f"watermark_{invoice.status}") if marked else ""


def _note(invoice: Invoice, wording: Wording, zone: ZoneInfo) -> str:
    """What the reader is to do, or what was done."""
    match invoice.status:
        case InvoiceStatus.DRAFT:
            return wording.say("is_preview")
        case InvoiceStatus.VOID:
            return wording.say("is_void", day=wording.day(invoice.voided_at, zone))
        case _ if invoice.total_minor == 0:
            return wording.say("is_covered")
        case InvoiceStatus.PAID:
            return wording.say("is_paid", day=wording.day(invoice.paid_at, zone))
        case InvoiceStatus.UNCOLLECTIBLE:
            return wording.say("is_written_off", day=wording.day(invoice.uncollectible_at, zone))
    due = due_minor(invoice)
    name = "is_past_due" if invoice.status == InvoiceStatus.PAST_DUE else "is_due"
    said = wording.say(name, amount=wording.minor(due, invoice.currency), day=wording.day(invoice.due_at, zone))
    if credited := invoice.total_minor - due:
        said += " " + wording.say("is_credited", amount=wording.minor(credited, invoice.currency))
    return said


@dataclass(frozen=True)
class CreditNoteDocument:
    """A credit note as it is read, in the language of its invoice."""

    wording: Wording
    title: str
    number: str
    invoice_number: str
    issuer: list[str]
    issuer_tax_id: str
    footer: list[str]
    bill_to: list[str]
    bill_to_tax_id: str
    email: str
    issued: str
    currency: str
    reason: str
    net: str
    tax_label: str
    tax: str
    total: str
    note: str


def credit_note_document(note: CreditNote) -> CreditNoteDocument:
    invoice = note.invoice
    wording, zone = Wording(invoice.language), ZoneInfo(invoice.time_zone)
    return CreditNoteDocument(
        wording=wording,
        title=wording.say("credit_note"),
        number=note.number,
        invoice_number=invoice.number or "",
        issuer=invoice.issuer.splitlines(),
        issuer_tax_id=settings.INVOICE_ISSUER_TAX_ID,
        footer=settings.INVOICE_FOOTER.splitlines(),
        bill_to=invoice.bill_to.splitlines(),
        bill_to_tax_id=invoice.bill_to_tax_id,
        email=invoice.email,
        issued=wording.day(note.issued_at, zone),
        currency=invoice.currency,
        reason=note.reason,
        net=wording.minor(note.amount_minor, invoice.currency),
        tax_label=tax_label(invoice, wording),
        tax=wording.minor(note.tax_minor, invoice.currency) if note.tax_minor else "",
        total=wording.minor(note.total_minor, invoice.currency),
        note=wording.say(f"note_{note.effect}", number=invoice.number),
    )


def overdue_of(organization_id: int) -> list[Invoice]:
    """What is past due, oldest first."""
    rows = Invoice.objects.filter(organization_id=organization_id, status=InvoiceStatus.PAST_DUE)
    return list(rows.select_related("push").order_by("due_at"))
