"""Reads of invoices, and the printed form that page, PDF and mail share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import QuerySet

from billing.invoices.models import Invoice, InvoiceLine, InvoiceStatus, LineKind, TokenKind
from billing.money import format_minor, format_nano


def invoices_of(organization_id: int) -> QuerySet[Invoice]:
    """Newest first, drafts included."""
    return Invoice.objects.filter(organization_id=organization_id).select_related("push")


def invoices_in(period: str) -> list[Invoice]:
    """All organizations' invoices of the month `YYYY-MM`, void ones included; for the operator."""
    return list(Invoice.objects.filter(period=period).select_related("push").order_by("organization_id", "id"))


def find_invoice(invoice_id: int) -> Invoice | None:
    """For whoever checks afterwards that the asker may see it."""
    return Invoice.objects.filter(id=invoice_id).select_related("push").first()


@dataclass(frozen=True)
class DocumentLine:
    description: str
    tokens: str
    unit_price: str
    amount: str


@dataclass(frozen=True)
class InvoiceDocument:
    """An invoice as it is read: texts only, dates in the billing zone."""

    title: str
    # Empty, like the dates, until the invoice is issued.
    number: str
    status: str
    issuer: list[str]
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
    tax: str
    total: str
    is_draft: bool
    note: str


_STATUS_NAMES = {
    InvoiceStatus.DRAFT: "Draft",
    InvoiceStatus.FINAL: "Due",
    InvoiceStatus.PAID: "Paid",
    InvoiceStatus.VOID: "Void",
}
_TOKEN_NAMES = {
    TokenKind.INPUT: "input tokens",
    TokenKind.CACHED_INPUT: "cached input tokens",
    TokenKind.OUTPUT: "output tokens",
}
_LINE_SUFFIXES = {
    LineKind.USAGE: "",
    LineKind.LATE_USAGE: ", of earlier months",
    LineKind.ADJUSTMENT: ", correction",
}


def described_lines(invoice: Invoice) -> list[tuple[InvoiceLine, str]]:
    """The lines with what they are for, in one query. Price versions are told apart by their date."""
    lines = list(invoice.lines.select_related("price"))
    versions: dict[tuple[str, str], set[int]] = {}
    for line in lines:
        versions.setdefault((line.model, line.token_kind), set()).add(line.price_id)
    zone = ZoneInfo(invoice.time_zone)
    described = []
    for line in lines:
        text = f"{line.model}, {_TOKEN_NAMES[TokenKind(line.token_kind)]}{_LINE_SUFFIXES[LineKind(line.kind)]}"
        if len(versions[line.model, line.token_kind]) > 1:
            text += f", price from {_day(line.price.effective_from, zone)}"
        described.append((line, text))
    return described


def document(invoice: Invoice) -> InvoiceDocument:
    """The printed form; one query for the lines."""
    currency = invoice.currency
    zone = ZoneInfo(invoice.time_zone)
    lines = [
        DocumentLine(
            description=text,
            tokens=f"{line.tokens:,}",
            unit_price=format_nano(line.unit_price_nano, currency),
            amount=format_minor(line.amount_minor, currency),
        )
        for line, text in described_lines(invoice)
    ]
    is_draft = invoice.status == InvoiceStatus.DRAFT
    return InvoiceDocument(
        title="Invoice preview" if is_draft else "Invoice",
        number=invoice.number or "",
        status=_status_name(invoice),
        issuer=invoice.issuer.splitlines(),
        bill_to=invoice.bill_to.splitlines(),
        bill_to_tax_id=invoice.bill_to_tax_id,
        email=invoice.email,
        period=_period(invoice, zone),
        issued=_day(invoice.finalized_at, zone),
        due=_day(invoice.due_at, zone),
        currency=currency,
        lines=lines,
        usage_exact=format_nano(invoice.usage_nano, currency),
        subtotal=format_minor(invoice.subtotal_minor, currency),
        credit_label="Prepaid credit applied" if invoice.credit_minor >= 0 else "Credited to your balance",
        credit=format_minor(-invoice.credit_minor, currency) if invoice.credit_minor else "",
        tax=format_minor(invoice.tax_minor, currency) if invoice.tax_minor else "",
        total=format_minor(invoice.total_minor, currency),
        is_draft=is_draft,
        note=_note(invoice, zone),
    )


def _status_name(invoice: Invoice) -> str:
    if invoice.status == InvoiceStatus.FINAL and invoice.total_minor == 0:
        return "Nothing due"
    return _STATUS_NAMES[InvoiceStatus(invoice.status)]


def _period(invoice: Invoice, zone: ZoneInfo) -> str:
    last_day = invoice.period_end - timedelta(microseconds=1)
    return f"{invoice.period_start.astimezone(zone).day} to {_day(last_day, zone)} ({invoice.time_zone})"


def _day(moment: datetime | None, zone: ZoneInfo) -> str:
    if moment is None:
        return ""
    local = moment.astimezone(zone)
    return f"{local.day} {local:%B %Y}"


def _note(invoice: Invoice, zone: ZoneInfo) -> str:
    if invoice.status == InvoiceStatus.DRAFT:
        return "This is a preview of the usage known so far. It is not an invoice and nothing is due."
    if invoice.status == InvoiceStatus.VOID:
        return f"This invoice was voided on {_day(invoice.voided_at, zone)}. Nothing is due."
    if invoice.status == InvoiceStatus.PAID:
        return f"Paid on {_day(invoice.paid_at, zone)}. Thank you."
    if invoice.total_minor == 0:
        return "The usage of this period was covered by prepaid credit. Nothing is due."
    return f"Please pay {format_minor(invoice.total_minor, invoice.currency)} by {_day(invoice.due_at, zone)}."
