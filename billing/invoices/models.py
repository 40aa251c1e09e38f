"""Invoices: one per organization and period, frozen by triggers once they are no draft."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class InvoiceStatus(models.TextChoices):
    DRAFT = "draft"
    FINAL = "final"
    PAID = "paid"
    VOID = "void"


class InvoiceSeries(models.Model):
    """Gapless numbers: the row is locked from taking a number to the commit that uses it."""

    prefix = models.CharField(max_length=20, primary_key=True)
    last_number = models.BigIntegerField(default=0)

    class Meta:
        db_table = "billing_invoice_series"


class Invoice(models.Model):
    """Amounts in `_minor` are whole cents; `_nano` are the exact sums they stand for."""

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="invoices")
    status = models.CharField(max_length=10, choices=InvoiceStatus, default=InvoiceStatus.DRAFT)
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

    usage_nano = models.BigIntegerField(default=0)
    credit_nano = models.BigIntegerField(default=0)
    absorbed_nano = models.BigIntegerField(default=0)
    rounding_nano = models.BigIntegerField(default=0)
    subtotal_minor = models.BigIntegerField(default=0)
    credit_minor = models.BigIntegerField(default=0)
    tax_minor = models.BigIntegerField(default=0)
    total_minor = models.BigIntegerField(default=0)

    created_at = models.DateTimeField(db_default=Now())
    drafted_at = models.DateTimeField()
    finalized_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    paid_at = models.DateTimeField(null=True)
    voided_at = models.DateTimeField(null=True)
    void_reason = models.CharField(max_length=300, blank=True)

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
                condition=Q(total_minor=F("subtotal_minor") - F("credit_minor") + F("tax_minor"), total_minor__gte=0),
            ),
            models.CheckConstraint(
                name="billing_invoice_numbered",
                condition=Q(status="draft", number__isnull=True) | (~Q(status="draft") & Q(number__isnull=False)),
            ),
        ]

    def __str__(self) -> str:
        return self.number or f"draft {self.period}"


class LineKind(models.TextChoices):
    USAGE = "usage"
    # Usage of an earlier period that became known after its invoice.
    LATE_USAGE = "late_usage"
    ADJUSTMENT = "adjustment"


class TokenKind(models.TextChoices):
    INPUT = "input"
    CACHED_INPUT = "cached_input", "cached input"
    OUTPUT = "output"


class InvoiceLine(models.Model):
    """One model x token kind x price version. `amount_nano` is exact; `amount_minor` is rounded, once."""

    invoice = models.ForeignKey(Invoice, on_delete=models.CASCADE, related_name="lines")
    position = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=LineKind)
    model = models.CharField(max_length=200)
    price = models.ForeignKey("billing.Price", on_delete=models.PROTECT, related_name="+", db_index=False)
    token_kind = models.CharField(max_length=12, choices=TokenKind)
    tokens = models.BigIntegerField()
    unit_price_nano = models.BigIntegerField()
    amount_nano = models.BigIntegerField()
    amount_minor = models.BigIntegerField()

    class Meta:
        db_table = "billing_invoice_line"
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(name="billing_line_position", fields=["invoice", "position"]),
            models.UniqueConstraint(name="billing_line_once", fields=["invoice", "kind", "price", "token_kind"]),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.model} {self.token_kind}"
