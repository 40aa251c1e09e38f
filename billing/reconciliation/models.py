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
    # One account only, since the other side ended in the middle: the gateway before it could finish the record, or the
    # engine before it could say how the call ended.
    UNFINISHED = "unfinished"
    ENGINE_ONLY = "engine_only"


class Receipt(models.Model):
    """What the other party says of a request: a line of an engine's journal, unique per source and sequence, or what an
    upstream without a journal said at the end of its answer, unique per source and request."""

    source = models.CharField(max_length=200)
    # Of the journal; null for an upstream.
    sequence = models.BigIntegerField(null=True)
    # The upstream's own id of the request; empty for an engine, which is told ours.
    upstream_id = models.CharField(max_length=200, blank=True, db_default="", default="")
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
        constraints = [
            models.UniqueConstraint(name="billing_receipt_once", fields=["source", "sequence"]),
            models.UniqueConstraint(
                name="billing_receipt_once_upstream",
                fields=["source", "request_id"],
                condition=Q(sequence__isnull=True),
            ),
        ]
        indexes = [
            # What a pull judges: a handful, whatever the table has grown to.
            models.Index(
                fields=["source", "sequence"], name="billing_receipt_pending", condition=Q(match_class="pending")
            ),
            BrinIndex(fields=["started_at"], name="billing_receipt_day", autosummarize=True),
            # The list of what did not agree: few among millions.
            models.Index(
                fields=["is_settled", "started_at"], name="billing_receipt_unequal", condition=~Q(match_class="equal")
            ),
            models.Index(fields=["organization_id", "finished_at"], name="billing_receipt_by_org"),
        ]

    def __str__(self) -> str:
        return f"{self.source}#{self.upstream_id if self.sequence is None else self.sequence}"


class GatewayEnd(models.Model):
    """A gateway that ended without finishing its calls, as its successor found out. Nobody finishes them any more."""

    gateway_id = models.CharField(max_length=100, primary_key=True)
    ended_at = models.DateTimeField()

    class Meta:
        db_table = "billing_gateway_end"

    def __str__(self) -> str:
        return self.gateway_id


class PeriodClose(models.Model):
    """A month (UTC) whose calls all agree, or whose rest a named person waived. Written once, never changed."""

    period = models.CharField(max_length=7, unique=True, help_text="YYYY-MM, in UTC.")
    closed_at = models.DateTimeField()
    actor_id = models.BigIntegerField()
    # As it stood then.
    actor_name = models.CharField(max_length=200)
    calls = models.BigIntegerField()
    equal = models.BigIntegerField()
    # Neither equal nor repaired.
    unmatched = models.BigIntegerField()
    waiver = models.CharField(max_length=500, blank=True)

    class Meta:
        db_table = "billing_period_close"
        constraints = [
            models.CheckConstraint(
                name="billing_period_close_matched_or_waived", condition=Q(unmatched=0) | ~Q(waiver="")
            ),
        ]

    def __str__(self) -> str:
        return self.period


class MatchHour(models.Model):
    """An hour (UTC) whose match rates stand in `MatchRollup`. A change of one of its calls deletes it (a trigger)."""

    start = models.DateTimeField(primary_key=True)

    class Meta:
        db_table = "billing_match_hour"


class MatchRollup(models.Model):
    """Calls of an hour by how record and receipt agreed: of an organization, of nobody we know (-1), of all (0)."""

    pk = models.CompositePrimaryKey("start", "organization_id")
    start = models.DateTimeField()
    organization_id = models.BigIntegerField()
    total = models.BigIntegerField()
    equal = models.BigIntegerField()
    differ = models.BigIntegerField()
    unfinished = models.BigIntegerField()
    engine_only = models.BigIntegerField()
    gateway_only = models.BigIntegerField()
    pending = models.BigIntegerField()
    unsettled = models.BigIntegerField()

    class Meta:
        db_table = "billing_match_rollup"
        indexes = [
            models.Index(fields=["start"], name="billing_match_rollup_all", condition=Q(organization_id=0)),
            models.Index(
                fields=["start"], name="billing_match_rollup_differing", condition=Q(equal__lt=models.F("total"))
            ),
        ]
