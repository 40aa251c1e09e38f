"""One record per request: opened before the first byte leaves, finished once, never edited after."""

from __future__ import annotations

from functools import reduce
from operator import add

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Expression, F, Q

# The parts of a record's cost; each is rounded once, and stands on an invoice line of its own.
COST_KINDS = ("input", "cached", "cache_write", "output", "reasoning", "minimum")
_TOTAL: Expression = reduce(add, (F(f"{kind}_cost_nano") for kind in COST_KINDS[1:]), F(f"{COST_KINDS[0]}_cost_nano"))  # type: ignore[assignment]  # a sum of F


class RecordStatus(models.TextChoices):
    STARTED = "started"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class UsageRecord(models.Model):
    """Token counts and cost of one request.

    A trigger refuses every change but started -> final, once, and the binding to an invoice. A request belongs to the
    day and month in which it started, everywhere: usage page, summaries and invoices. The table is partitioned by the
    request id, which follows time (`partitions.py`).
    """

    request_id = models.UUIDField(primary_key=True)
    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="+", db_index=False)
    # Ids of portal's rows; null only on a record that reconciliation made from a receipt.
    project_id = models.BigIntegerField(null=True)
    api_key_id = models.BigIntegerField(null=True)
    deployment_id = models.BigIntegerField(null=True)
    model = models.CharField(max_length=200)
    # Pinned at the opening: later price versions never touch this request.
    price = models.ForeignKey("billing.Price", null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    protocol = models.CharField(max_length=40)
    is_stream = models.BooleanField()
    end_user = models.CharField(max_length=256, blank=True, default="")
    # Which try of its operation this is, from 1; `request_ids.py` says how the id tells the operation.
    attempt = models.PositiveSmallIntegerField(db_default=1, default=1)
    gateway_id = models.CharField(max_length=100)
    # False for upstreams that keep no journal: reconciliation does not wait for them.
    expects_receipt = models.BooleanField(db_default=True, default=True)
    # What an upstream without a journal called the request: what its own bill is matched by.
    upstream_id = models.CharField(max_length=200, blank=True, db_default="", default="")

    status = models.CharField(max_length=10, choices=RecordStatus)
    # Held against the balance while started.
    hold_nano = models.BigIntegerField()
    # What limits hold for it meanwhile: estimates.
    reserved_input_tokens = models.BigIntegerField(db_default=0, default=0)
    reserved_output_tokens = models.BigIntegerField(db_default=0, default=0)
    started_at = models.DateTimeField()

    finished_at = models.DateTimeField(null=True)
    # Prompt tokens include the cached ones and those written to the cache, completion tokens the reasoning ones.
    prompt_tokens = models.BigIntegerField(db_default=0, default=0)
    cached_tokens = models.BigIntegerField(db_default=0, default=0)
    cache_write_tokens = models.BigIntegerField(db_default=0, default=0)
    completion_tokens = models.BigIntegerField(db_default=0, default=0)
    reasoning_tokens = models.BigIntegerField(db_default=0, default=0)
    finish_reason = models.CharField(max_length=40, blank=True, db_default="", default="")
    error_code = models.CharField(max_length=80, blank=True, db_default="", default="")
    ttft_ms = models.FloatField(null=True)
    duration_ms = models.FloatField(null=True)
    # Counted by the gateway because the engine's own usage never came.
    is_estimated = models.BooleanField(db_default=False, default=False)

    input_cost_nano = models.BigIntegerField(db_default=0, default=0)
    cached_cost_nano = models.BigIntegerField(db_default=0, default=0)
    cache_write_cost_nano = models.BigIntegerField(db_default=0, default=0)
    output_cost_nano = models.BigIntegerField(db_default=0, default=0)
    reasoning_cost_nano = models.BigIntegerField(db_default=0, default=0)
    # What the price's minimum for a request adds to the tokens' cost.
    minimum_cost_nano = models.BigIntegerField(db_default=0, default=0)
    cost_nano = models.GeneratedField(
        expression=_TOTAL,
        output_field=models.BigIntegerField(),
        db_persist=True,
    )
    # The invoice that billed it: set once, cleared only when that invoice is voided.
    invoice = models.ForeignKey(
        "billing.Invoice", null=True, on_delete=models.PROTECT, related_name="records", db_index=False
    )

    class Meta:
        db_table = "billing_usage_record"
        constraints = [
            models.CheckConstraint(name="billing_record_status", condition=Q(status__in=RecordStatus.values)),
            models.CheckConstraint(name="billing_record_hold_not_negative", condition=Q(hold_nano__gte=0)),
            models.CheckConstraint(
                name="billing_record_finished_when_final",
                condition=Q(status="started", finished_at__isnull=True)
                | (~Q(status="started") & Q(finished_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="billing_record_counts",
                condition=Q(
                    prompt_tokens__gte=F("cached_tokens") + F("cache_write_tokens"),
                    cached_tokens__gte=0,
                    cache_write_tokens__gte=0,
                    completion_tokens__gte=F("reasoning_tokens"),
                    reasoning_tokens__gte=0,
                ),
            ),
            models.CheckConstraint(
                name="billing_record_costs",
                condition=Q(**{f"{kind}_cost_nano__gte": 0 for kind in COST_KINDS}),
            ),
            models.CheckConstraint(
                name="billing_record_free_unless_served",
                condition=Q(status__in=["completed", "cancelled"])
                | Q(**{f"{kind}_cost_nano": 0 for kind in COST_KINDS}),
            ),
            models.CheckConstraint(name="billing_record_attempt", condition=Q(attempt__gte=1, attempt__lte=16)),
        ]
        indexes = [
            # The usage page (newest first) and its keyset cursor.
            models.Index(F("organization"), F("started_at").desc(), F("request_id").desc(), name="billing_record_page"),
            # The same list of one API key.
            models.Index(F("api_key_id"), F("started_at").desc(), F("request_id").desc(), name="billing_record_by_key"),
            # And of one end user; most calls name none.
            models.Index(
                F("organization"),
                F("end_user"),
                F("started_at").desc(),
                F("request_id").desc(),
                name="billing_record_by_user",
                condition=Q(end_user__gt=""),
            ),
            # Σ hold of an organization, and the sweep for stale records.
            models.Index(
                fields=["organization", "started_at"], name="billing_record_started", condition=Q(status="started")
            ),
            # Days across all organizations, for the match rates.
            BrinIndex(fields=["started_at"], name="billing_record_day", autosummarize=True),
            # What the next invoice takes.
            models.Index(
                fields=["organization", "started_at"],
                name="billing_record_to_invoice",
                condition=Q(invoice__isnull=True) & ~Q(status="started"),
            ),
            models.Index(fields=["invoice"], name="billing_record_invoice", condition=Q(invoice__isnull=False)),
        ]

    def __str__(self) -> str:
        return str(self.request_id)


class RetiredMonth(models.Model):
    """What was removed of one UTC month with a partition of old records, in sums. Written once, never changed."""

    period = models.CharField(max_length=7, help_text="YYYY-MM, in UTC.")
    partition = models.CharField(max_length=63)
    # The ids that the partition held: from the first, or the beginning, to before the last.
    first_id = models.UUIDField(null=True)
    until_id = models.UUIDField()
    records = models.BigIntegerField()
    cost_nano = models.BigIntegerField()
    adjustments = models.BigIntegerField()
    adjusted_nano = models.BigIntegerField()
    retired_at = models.DateTimeField()
    # Who asked for it, as the name stood then; empty: the schedule.
    actor_name = models.CharField(max_length=200, blank=True)

    class Meta:
        db_table = "billing_retired_month"
        constraints = [
            models.UniqueConstraint(name="billing_retired_month_once", fields=["partition", "period"]),
        ]

    def __str__(self) -> str:
        return self.period


class UsageAdjustment(models.Model):
    """A correction of a record's counts and cost, as a new row: the record itself stays as it was written."""

    # Names the cause, e.g. the receipt; a repeat changes nothing.
    key = models.CharField(max_length=200, unique=True)
    record = models.ForeignKey(UsageRecord, on_delete=models.PROTECT, related_name="adjustments")
    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="+", db_index=False)
    reason = models.CharField(max_length=200)
    prompt_tokens = models.BigIntegerField()
    cached_tokens = models.BigIntegerField()
    cache_write_tokens = models.BigIntegerField(db_default=0, default=0)
    completion_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    input_cost_nano = models.BigIntegerField()
    cached_cost_nano = models.BigIntegerField()
    cache_write_cost_nano = models.BigIntegerField(db_default=0, default=0)
    output_cost_nano = models.BigIntegerField()
    reasoning_cost_nano = models.BigIntegerField(db_default=0, default=0)
    # What the price's minimum for a request adds to the tokens' cost.
    minimum_cost_nano = models.BigIntegerField(db_default=0, default=0)
    cost_nano = models.GeneratedField(
        expression=_TOTAL,
        output_field=models.BigIntegerField(),
        db_persist=True,
    )
    created_at = models.DateTimeField()
    invoice = models.ForeignKey("billing.Invoice", null=True, on_delete=models.PROTECT, related_name="adjustments")

    class Meta:
        db_table = "billing_usage_adjustment"
        indexes = [
            models.Index(fields=["organization", "created_at"], name="billing_adjustment_by_org"),
        ]

    def __str__(self) -> str:
        return self.key
