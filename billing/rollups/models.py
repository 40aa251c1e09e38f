"""Sums of usage records by minute, quarter, hour, day and longer; `manage.py rebuild_rollups` makes them again.

A record counts in the bucket in which it started, as everywhere. What has ended but is not summed yet stands in
`RollupPending`, put there by triggers in the transaction that ended it: rollups and pending together are exact at
every moment, however late a record is finished.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

# In place of an organization: all of them together.
ALL_ORGANIZATIONS = 0
# In place of an id that a record does not have.
NONE = 0

MINUTE_S, QUARTER_S, HOUR_S, DAY_S = 60, 900, 3600, 86_400
# Those below an hour are for the operations view and forgotten after two days.
GRAINS_S = (MINUTE_S, QUARTER_S, HOUR_S, DAY_S)
# Sums of days, of some rollups alone. They are counted from 1970: a week begins on a Thursday.
WEEK_S, FOUR_WEEKS_S = 7 * DAY_S, 28 * DAY_S


class RollupPending(models.Model):
    """An ended record or an adjustment that no rollup holds yet."""

    organization_id = models.BigIntegerField(db_index=True)
    record_id = models.UUIDField(null=True)
    adjustment_id = models.BigIntegerField(null=True)

    class Meta:
        db_table = "billing_rollup_pending"


class Sums(models.Model):
    requests = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    cost_nano = models.BigIntegerField(default=0)

    class Meta:
        abstract = True


class UsageRollup(Sums):
    """By hour, day and four weeks, of an organization, in the divisions that its members ask for."""

    pk = models.CompositePrimaryKey(
        "organization_id", "grain_s", "start", "project_id", "api_key_id", "model", "protocol", "status"
    )
    organization_id = models.BigIntegerField()
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    project_id = models.BigIntegerField()
    api_key_id = models.BigIntegerField()
    model = models.CharField(max_length=200)
    protocol = models.CharField(max_length=40)
    status = models.CharField(max_length=10)

    class Meta:
        db_table = "billing_usage_rollup"
        indexes = [
            models.Index(fields=["start"], name="billing_usage_rollup_start"),
            models.Index(fields=["api_key_id", "grain_s", "start"], name="billing_usage_rollup_by_key"),
        ]


class ProjectRollup(Sums):
    """By hour, day and week, of an organization's projects alone: their charts, and who is busiest."""

    pk = models.CompositePrimaryKey("organization_id", "grain_s", "start", "project_id")
    organization_id = models.BigIntegerField()
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    project_id = models.BigIntegerField()

    class Meta:
        db_table = "billing_project_rollup"
        indexes = [
            # The busiest organizations, from the index alone.
            models.Index(
                fields=["grain_s", "start"],
                include=["organization_id", "completion_tokens"],
                name="billing_project_rollup_busiest",
            ),
        ]


class KeyRollup(Sums):
    """By day and four weeks, of an organization's projects and API keys alone: what keys are read from over days and
    months."""

    pk = models.CompositePrimaryKey("organization_id", "grain_s", "start", "project_id", "api_key_id")
    organization_id = models.BigIntegerField()
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    project_id = models.BigIntegerField()
    api_key_id = models.BigIntegerField()

    class Meta:
        db_table = "billing_key_rollup"
        indexes = [
            models.Index(fields=["start"], name="billing_key_rollup_start"),
            models.Index(fields=["api_key_id", "grain_s", "start"], name="billing_key_rollup_by_key"),
        ]


class EndUserRollup(Sums):
    """By hour and day, of an organization's end users as its calls name them; empty: of nobody named."""

    pk = models.CompositePrimaryKey("organization_id", "grain_s", "start", "end_user")
    organization_id = models.BigIntegerField()
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    end_user = models.CharField(max_length=256, blank=True)

    class Meta:
        db_table = "billing_end_user_rollup"
        indexes = [
            models.Index(fields=["start"], name="billing_end_user_rollup_start"),
            models.Index(
                fields=["organization_id", "end_user", "grain_s", "start"], name="billing_end_user_rollup_user"
            ),
        ]


class MonthRollup(Sums):
    """By month of UTC, of an organization alone: what a list of all organizations is ordered by."""

    pk = models.CompositePrimaryKey("start", "organization_id")
    start = models.DateTimeField()
    organization_id = models.BigIntegerField()

    class Meta:
        db_table = "billing_month_rollup"


class ServiceRollup(Sums):
    """By minute, quarter, hour and day, of an organization and of all together, with how it went and how long it took.

    `histogram` holds the latencies of all kinds, packed (billing/rollups/histograms.py). `context_token_ms` is how much
    of a KV cache the calls took for how long: tokens of context times the milliseconds for which they lay there.
    """

    pk = models.CompositePrimaryKey("organization_id", "grain_s", "start", "model", "deployment_id")
    organization_id = models.BigIntegerField()
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    model = models.CharField(max_length=200)
    deployment_id = models.BigIntegerField()
    cancelled = models.BigIntegerField(default=0)
    # Failures by class (billing/rollups/failures.py).
    failed_request = models.BigIntegerField(default=0)
    failed_capacity = models.BigIntegerField(default=0)
    failed_unavailable = models.BigIntegerField(default=0)
    failed_timeout = models.BigIntegerField(default=0)
    failed_engine = models.BigIntegerField(default=0)
    context_token_ms = models.BigIntegerField(default=0, db_default=0)
    histogram = ArrayField(models.BigIntegerField(), default=list)

    class Meta:
        db_table = "billing_service_rollup"
        indexes = [
            # The busiest organizations, from the index alone; what the hourly purge takes.
            models.Index(
                fields=["grain_s", "start"],
                include=["organization_id", "completion_tokens"],
                name="billing_service_rollup_busiest",
            ),
        ]
