"""What the operations view shows beside the sums of usage: samples of deployments, and refusals.

Both are bounded: samples live for an hour, minutes for two days, hours for a year. None of it is a fact of the books.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models


class DeploymentSample(models.Model):
    """How a deployment was at one moment. All deployments of a round of asking share `taken_at`.

    The figures of the engine are null where it cannot be asked: an upstream, or an engine that is away. Its counts
    of tokens only rise, until it restarts.
    """

    pk = models.CompositePrimaryKey("deployment_id", "taken_at")
    deployment_id = models.BigIntegerField()
    taken_at = models.DateTimeField(db_index=True)
    # Calls whose usage record is open.
    active_calls = models.IntegerField()
    active_streams = models.IntegerField()
    running = models.IntegerField(null=True)
    waiting = models.IntegerField(null=True)
    max_sequences = models.IntegerField(null=True)
    pages_used = models.IntegerField(null=True)
    pages_total = models.IntegerField(null=True)
    # Of a KV cache in two stages, whose other pages are in FP8: its stale ones.
    three_bit_pages_used = models.IntegerField(null=True)
    three_bit_pages_total = models.IntegerField(null=True)
    prompt_tokens = models.BigIntegerField(null=True)
    prefix_hit_tokens = models.BigIntegerField(null=True)
    completion_tokens = models.BigIntegerField(null=True)
    drafted_tokens = models.BigIntegerField(null=True)
    accepted_tokens = models.BigIntegerField(null=True)

    class Meta:
        app_label = "portal"
        db_table = "portal_deployment_sample"

    @property
    def kv_share(self) -> float | None:
        return kv_share(self.pages_used, self.pages_total, self.three_bit_pages_used, self.three_bit_pages_total)


def kv_share(used: int | None, total: int | None, stale_used: int | None, stale_total: int | None) -> float | None:
    """Pages in use, 0 to 1, of whichever kind is shorter: it is what newcomers wait for. None: nobody said."""
    kinds = ((used, total), (stale_used, stale_total))
    return max((min(1.0, part / whole) for part, whole in kinds if part is not None and whole), default=None)


class DeploymentRollup(models.Model):
    """Samples of a minute, a quarter or an hour.

    `histogram` holds the distributions of gauges (portal/operations/gauges.py); the sums are for means; the token
    counts are what was added between samples, and `busy_s` the time between samples in which sequences ran.
    """

    pk = models.CompositePrimaryKey("deployment_id", "grain_s", "start")
    deployment_id = models.BigIntegerField()
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    samples = models.IntegerField()
    # Of `samples`, those that the deployment answered.
    answered = models.IntegerField()
    active_streams_sum = models.BigIntegerField()
    running_sum = models.BigIntegerField()
    waiting_sum = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    prefix_hit_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    drafted_tokens = models.BigIntegerField()
    accepted_tokens = models.BigIntegerField()
    busy_s = models.FloatField()
    histogram = ArrayField(models.BigIntegerField(), default=list)

    class Meta:
        app_label = "portal"
        db_table = "portal_deployment_rollup"
        indexes = [models.Index(fields=["grain_s", "start"], name="portal_deployment_rollup_start")]


class RefusalCount(models.Model):
    """Calls answered with an error before any work, by reason. A gateway writes its own rows, whole, again and again.

    `organization_id` is 0 where no key told it; hours are the sum of all gateways under an empty `gateway_id`.
    """

    pk = models.CompositePrimaryKey("grain_s", "start", "code", "organization_id", "gateway_id")
    grain_s = models.IntegerField()
    start = models.DateTimeField()
    code = models.CharField(max_length=80)
    organization_id = models.BigIntegerField()
    gateway_id = models.CharField(max_length=100)
    count = models.BigIntegerField()

    class Meta:
        app_label = "portal"
        db_table = "portal_refusal_count"
