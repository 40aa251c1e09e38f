"""The engines' own statements, kept as they came, and how each compared with our record."""

from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class MatchClass(models.TextChoices):
    # Waits for the gateway's own finish, which may be milliseconds behind the receipt.
    PENDING = "pending"
    EQUAL = "equal"
    DIFFER = "differ"
    # The record was still started: the gateway died before it could finish it.
    UNFINISHED = "unfinished"
    ENGINE_ONLY = "engine_only"


class Receipt(models.Model):
    """One line of an engine's journal, unique per source and sequence."""

    source = models.CharField(max_length=200)
    sequence = models.BigIntegerField()
    request_id = models.UUIDField(db_index=True)
    # The tenant the engine was told; kept as text, since an engine may be used without us.
    tenant = models.CharField(max_length=64, blank=True)
    # The organization of the matched or repaired record.
    organization_id = models.BigIntegerField(null=True)
    model = models.CharField(max_length=200)
    status = models.CharField(max_length=10)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    error_code = models.CharField(max_length=80, blank=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    ttft_ms = models.FloatField(null=True)

    received_at = models.DateTimeField(db_default=Now())
    match_class = models.CharField(max_length=12, choices=MatchClass, default=MatchClass.PENDING)
    # True when nothing is left to do: equal, or repaired by a finish, an adjustment or a record of its own.
    is_settled = models.BooleanField(default=False)
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "billing_receipt"
        constraints = [models.UniqueConstraint(name="billing_receipt_once", fields=["source", "sequence"])]
        indexes = [
            # What a pull judges: a handful, whatever the table has grown to.
            models.Index(
                fields=["source", "sequence"], name="billing_receipt_pending", condition=Q(match_class="pending")
            ),
            BrinIndex(fields=["started_at"], name="billing_receipt_day", autosummarize=True),
            models.Index(fields=["organization_id", "finished_at"], name="billing_receipt_by_org"),
        ]

    def __str__(self) -> str:
        return f"{self.source}#{self.sequence}"
