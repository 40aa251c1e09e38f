"""What went to the payment provider and what came back."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class PushState(models.TextChoices):
    PUSHED = "pushed"
    FAILED = "failed"


class InvoicePush(models.Model):
    """The invoice's state at the provider; a failure stays here and is retried alone."""

    invoice = models.OneToOneField("billing.Invoice", primary_key=True, on_delete=models.PROTECT, related_name="push")
    provider = models.CharField(max_length=20)
    state = models.CharField(max_length=10, choices=PushState)
    external_id = models.CharField(max_length=200, blank=True)
    hosted_url = models.URLField(max_length=500, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    last_error = models.TextField(blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "billing_invoice_push"


class Payment(models.Model):
    """Money received, once per payment of the provider however many events tell of it."""

    provider = models.CharField(max_length=20)
    provider_payment_id = models.CharField(max_length=200)
    invoice = models.ForeignKey("billing.Invoice", on_delete=models.PROTECT, related_name="payments")
    amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    received_at = models.DateTimeField()

    class Meta:
        db_table = "billing_payment"
        constraints = [
            models.UniqueConstraint(name="billing_payment_once", fields=["provider", "provider_payment_id"]),
            models.CheckConstraint(name="billing_payment_positive", condition=Q(amount_minor__gt=0)),
        ]


class EventOutcome(models.TextChoices):
    # Kept, and waiting for a worker.
    RECEIVED = "received"
    APPLIED = "applied"
    # Tells of what is booked already.
    REPEATED = "repeated"
    # A type we do nothing with; kept for later.
    IGNORED = "ignored"
    # Names what we do not have, or an amount or currency that does not fit it: a person must look.
    UNMATCHED = "unmatched"
    # Handling broke off; tried again, and for a person to replay when that does not help.
    FAILED = "failed"


class PaymentEvent(models.Model):
    """A verified event of the provider, kept as it came. Its outcome is written in the transaction of its effect."""

    provider = models.CharField(max_length=20)
    event_id = models.CharField(max_length=200)
    type = models.CharField(max_length=100)
    payload = models.JSONField()
    outcome = models.CharField(max_length=10, choices=EventOutcome)
    note = models.CharField(max_length=300, blank=True)
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    received_at = models.DateTimeField(db_default=Now())
    worked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "billing_payment_event"
        constraints = [models.UniqueConstraint(name="billing_event_once", fields=["provider", "event_id"])]
        indexes = [
            models.Index(
                fields=["received_at"],
                name="billing_event_open",
                condition=Q(outcome__in=["received", "failed", "unmatched"]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"
