"""Invoices: one per organization and period, frozen by triggers once they are no draft."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.tax.models import TaxKind


class InvoiceStatus(models.TextChoices):
    DRAFT = "draft"
    # Numbered and frozen; on its way to the payer.
    FINAL = "final"
    SENT = "sent"
    PAST_DUE = "past_due"
    PAID = "paid"
    VOID = "void"
    # Given up: written off in the ledger, and still accepted when it is paid after all.
    UNCOLLECTIBLE = "uncollectible"


# The payer has it, or is about to get it, and may still owe it.
OPEN_STATUSES = (InvoiceStatus.FINAL, InvoiceStatus.SENT, InvoiceStatus.PAST_DUE)


class InvoiceSeries(models.Model):
    """Gapless numbers: the row is locked from taking a number to the commit that uses it."""

    prefix = models.CharField(max_length=20, primary_key=True)
    last_number = models.BigIntegerField(default=0)

    class Meta:
        db_table = "billing_invoice_series"


class Invoice(models.Model):
    """Amounts in `_minor` are whole cents; `_nano` are the exact sums they stand for."""

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="invoices")
    status = models.CharField(max_length=13, choices=InvoiceStatus, default=InvoiceStatus.DRAFT)
    number = models.CharField(max_length=40, null=True, unique=True)
    period = models.CharField(max_length=7, help_text="YYYY-MM in the billing zone.")
    period_start = models.DateTimeField()
    period_end = models.DateTimeField()
    time_zone = models.CharField(max_length=64)
    currency = models.CharField(max_length=3)

    # Copies: an invoice keeps what was true when it was issued.
    issuer = models.TextField(blank=True)
    bill_to = models.TextField(blank=True)
    bill_to_tax_id = models.CharField(max_length=64, blank=True)
    email = models.EmailField()
    language = models.CharField(max_length=5, default="en", db_default="en")

    usage_nano = models.BigIntegerField(default=0)
    credit_nano = models.BigIntegerField(default=0)
    absorbed_nano = models.BigIntegerField(default=0)
    # Σ of the fee lines; always whole cents, and never paid from credit.
    fees_nano = models.BigIntegerField(default=0, db_default=0)
    rounding_nano = models.BigIntegerField(default=0)
    subtotal_minor = models.BigIntegerField(default=0)
    credit_minor = models.BigIntegerField(default=0)
    tax_kind = models.CharField(max_length=8, choices=TaxKind, default=TaxKind.NONE, db_default="none")
    tax_name = models.CharField(max_length=40, blank=True, default="", db_default="")
    tax_percent = models.DecimalField(max_digits=7, decimal_places=4, default=0, db_default=0)
    # On what is to be paid: the subtotal less the credit, which bore its tax when it was bought.
    tax_minor = models.BigIntegerField(default=0)
    total_minor = models.BigIntegerField(default=0)

    created_at = models.DateTimeField(db_default=Now())
    drafted_at = models.DateTimeField()
    finalized_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)
    paid_at = models.DateTimeField(null=True)
    voided_at = models.DateTimeField(null=True)
    void_reason = models.CharField(max_length=300, blank=True)
    uncollectible_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "billing_invoice"
        ordering = ["-period_start", "-id"]
        constraints = [
            models.UniqueConstraint(
                name="billing_invoice_one_per_period", fields=["organization", "period"], condition=~Q(status="void")
            ),
            models.CheckConstraint(name="billing_invoice_status", condition=Q(status__in=InvoiceStatus.values)),
            models.CheckConstraint(name="billing_invoice_period", condition=Q(period_end__gt=F("period_start"))),
            models.CheckConstraint(
                name="billing_invoice_total",
                condition=Q(
                    total_minor=F("subtotal_minor") - F("credit_minor") + F("tax_minor"),
                    total_minor__gte=0,
                    tax_minor__gte=0,
                ),
            ),
            models.CheckConstraint(
                name="billing_invoice_numbered",
                condition=Q(status="draft", number__isnull=True) | (~Q(status="draft") & Q(number__isnull=False)),
            ),
        ]
        indexes = [
            # What dunning looks at.
            models.Index(fields=["due_at"], name="billing_invoice_unpaid", condition=Q(status__in=OPEN_STATUSES)),
        ]

    def __str__(self) -> str:
        return self.number or f"draft {self.period}"


class LineKind(models.TextChoices):
    USAGE = "usage"
    # Usage of an earlier period that became known after its invoice.
    LATE_USAGE = "late_usage"
    ADJUSTMENT = "adjustment"
    FEE = "fee"


class TokenKind(models.TextChoices):
    INPUT = "input"
    CACHED_INPUT = "cached_input", "cached input"
    CACHE_WRITE = "cache_write", "cache write"
    OUTPUT = "output"
    REASONING = "reasoning"
    # What the price's minimum for a request added; it has no tokens.
    MINIMUM = "minimum"


class InvoiceLine(models.Model):
    """One model x token kind x price version, or one fee. `amount_nano` is exact; `amount_minor` is rounded, once."""

    invoice = models.ForeignKey(Invoice, on_delete=models.CASCADE, related_name="lines")
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=LineKind)
    model = models.CharField(max_length=200)
    price = models.ForeignKey("billing.Price", null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    token_kind = models.CharField(max_length=12, choices=TokenKind, blank=True)
    tokens = models.BigIntegerField(default=0)
    unit_price_nano = models.BigIntegerField()
    amount_nano = models.BigIntegerField()
    amount_minor = models.BigIntegerField()
    # Of a fee: how many, and for how many days of the month.
    fee = models.ForeignKey(
        "billing.RecurringFee", null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    quantity = models.PositiveIntegerField(null=True)
    days = models.PositiveSmallIntegerField(null=True)
    days_of_month = models.PositiveSmallIntegerField(null=True)

    class Meta:
        db_table = "billing_invoice_line"
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(name="billing_line_position", fields=["invoice", "position"]),
            models.UniqueConstraint(name="billing_line_once", fields=["invoice", "kind", "price", "token_kind"]),
            models.UniqueConstraint(
                name="billing_line_fee_once", fields=["invoice", "fee"], condition=Q(fee__isnull=False)
            ),
            models.CheckConstraint(
                name="billing_line_usage_or_fee",
                condition=Q(kind="fee", fee__isnull=False, price__isnull=True)
                | (~Q(kind="fee") & Q(fee__isnull=True, price__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.model} {self.token_kind}"


class CreditNoteEffect(models.TextChoices):
    # Less is to be paid.
    REDUCES = "reduces", "Less to pay"
    # The invoice was paid: the money goes back.
    REFUNDS = "refunds", "Paid back"


class CreditNote(models.Model):
    """Takes back a part of an issued invoice, under a number of its own series. Only what became of it may change."""

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="credit_notes")
    number = models.CharField(max_length=40, unique=True)
    # Names the act; a repeat returns the same note.
    key = models.CharField(max_length=200, unique=True)
    effect = models.CharField(max_length=10, choices=CreditNoteEffect)
    amount_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    reason = models.CharField(max_length=300)
    actor_id = models.BigIntegerField(null=True, blank=True)
    issued_at = models.DateTimeField()
    provider = models.CharField(max_length=20, blank=True)
    external_id = models.CharField(max_length=200, blank=True)
    push_error = models.TextField(blank=True)
    pushed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "billing_credit_note"
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                name="billing_credit_note_positive", condition=Q(amount_minor__gt=0, tax_minor__gte=0)
            ),
        ]

    def __str__(self) -> str:
        return self.number

    @property
    def total_minor(self) -> int:
        return self.amount_minor + self.tax_minor
