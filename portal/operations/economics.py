"""Measured throughput, demand and prices of each model, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.conf import settings
from django.db import connection

from billing.pricing import selectors as pricing
from billing.rollups import service
from billing.rollups.models import DAY_S, HOUR_S
from billing.rollups.service import ServiceFilters
from portal.catalog import selectors as catalog
from portal.operations.capacity import MONTH_DAYS, Assumptions, Demand, Yield, compute, margin
from portal.operations.services import floor

# An hour counts as a measurement when sequences ran for this long in it.
BUSY_ENOUGH_S = 60


@dataclass(frozen=True, slots=True)
class Measured:
    """The best hour of a model's best deployment: output per second while sequences ran."""

    tokens_per_s: Decimal
    deployment_id: int
    hour: datetime


@dataclass(frozen=True, slots=True)
class ModelEconomics:
    model_id: int
    model: str
    measured: Measured | None
    demand: Demand
    list_price_nano: int | None
    made: Yield | None

    @property
    def revenue_per_million_nano(self) -> int | None:
        """As sold; before the first sale, the list price of output."""
        return self.demand.revenue_per_million_nano or self.list_price_nano

    @property
    def margin_nano(self) -> int | None:
        revenue = self.revenue_per_million_nano
        return None if self.made is None or revenue is None else revenue - self.made.cost_per_million_nano

    @property
    def margin_share(self) -> Decimal | None:
        revenue = self.revenue_per_million_nano
        return None if self.made is None or revenue is None else margin(revenue, self.made.cost_per_million_nano)

    @property
    def gpus_needed(self) -> int | None:
        return None if self.made is None else self.demand.gpus_needed(self.made)


_BEST_HOURS = """
SELECT DISTINCT ON (deployment_id) deployment_id, start, completion_tokens / busy_s
  FROM portal_deployment_rollup
 WHERE grain_s = %(grain_s)s AND start >= %(since)s AND busy_s >= %(busy_s)s
 ORDER BY deployment_id, completion_tokens / busy_s DESC
"""


def measured_throughput(*, now: datetime) -> dict[str, Measured]:
    """By model, over the last 30 days. Models that only upstreams serve are not there: nobody can ask those."""
    models = {deployment.id: deployment.model for deployment in catalog.deployments()}
    best: dict[str, Measured] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            _BEST_HOURS, {"grain_s": HOUR_S, "since": now - timedelta(days=MONTH_DAYS), "busy_s": BUSY_ENOUGH_S}
        )
        for deployment_id, hour, rate in cursor.fetchall():
            model = models.get(deployment_id)
            found = Measured(Decimal(f"{rate:.1f}"), deployment_id, hour)
            if (
                model
                and found.tokens_per_s > 0
                and (model not in best or best[model].tokens_per_s < found.tokens_per_s)
            ):
                best[model] = found
    return best


def by_model(
    *, gpus: int, gpu_hour_nano: int, load: Decimal, tokens_per_s: Decimal | None, now: datetime
) -> list[ModelEconomics]:
    """Each model of the catalog. `tokens_per_s` takes the place of what was measured, where given.

    Money is in the first currency that is sold in, the GPU's too; what is paid in others counts as demand alone.
    """
    start = floor(now - timedelta(days=MONTH_DAYS), DAY_S)
    sold = dict(service.by_group("model", ServiceFilters(), start, now, grain_s=DAY_S, limit=1000))
    currency = str(settings.BILLING_CURRENCIES[0])
    several = len(settings.BILLING_CURRENCIES) > 1
    paid = service.sold_by_model(currency, start, now, grain_s=DAY_S) if several else None
    days = Decimal((now - start).total_seconds()) / DAY_S
    measured = measured_throughput(now=now)
    rows = []
    for model in catalog.all_models():
        found = measured.get(model.name)
        rate = tokens_per_s or (found.tokens_per_s if found else None)
        sums = sold.get(model.name)
        tokens, cost_nano = (sums.completion_tokens, sums.cost_nano) if sums else (0, 0)
        paid_tokens, revenue_nano = (tokens, cost_nano) if paid is None else paid.get(model.name, (0, 0))
        demand = Demand(days, tokens, revenue_nano, paid_tokens)
        price = pricing.current_price(model.name, now, currency=currency)
        made = compute(Assumptions(rate, gpus, gpu_hour_nano, load)) if rate else None
        rows.append(ModelEconomics(model.id, model.name, found, demand, price.output_nano if price else None, made))
    return rows
