"""Models as they are offered: price and its history, how the service runs them now, and how fast it was lately."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from django.utils import timezone

from billing.pricing import selectors as pricing
from billing.pricing.selectors import PriceInfo
from billing.rollups import service
from billing.rollups.failures import NAMES
from billing.rollups.histograms import Latency
from billing.rollups.service import ServiceFilters, ServiceSums
from portal.catalog import selectors, status
from portal.catalog.selectors import ModelInfo

# What is said of the speed is of so long, from rollups by the quarter of an hour.
MEASURED_OVER = timedelta(hours=24)
MEASURED_GRAIN_S = 900
MODELS_MEASURED = 200
# Failures that a caller did not cause.
OWN_FAULTS = tuple(name for name in NAMES if name != "request")

State = Literal["up", "partly", "down", "unknown", "none"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A model as it is offered. `history` are all versions of the list price, newest first, scheduled ones included."""

    model: ModelInfo
    price: PriceInfo | None
    history: list[PriceInfo]
    state: State


@dataclass(frozen=True, slots=True)
class Speed:
    """Of all calls of the service in the last 24 hours: medians and 95th percentiles in ms, output tokens per second of
    one stream, and the share that the service did not fail. None where nothing was measured."""

    ttft_ms: float | None
    ttft_p95_ms: float | None
    tokens_per_s: float | None
    success: float | None


NOT_MEASURED = Speed(None, None, None, None)


def offers(organization_id: int | None = None) -> list[Offer]:
    """Of every published model, by name."""
    states = _states()
    return [_offer(model, organization_id, states) for model in selectors.published_models()]


def find_offer(name: str, organization_id: int | None = None) -> Offer | None:
    """Of one published model, or None."""
    model = selectors.find_model(name)
    return _offer(model, organization_id, _states()) if model else None


def _offer(model: ModelInfo, organization_id: int | None, states: dict[str, State]) -> Offer:
    price = pricing.current_price(model.name, timezone.now(), organization_id)
    currency = pricing.currency_of(organization_id)
    history = [version for version in pricing.price_history(model.name) if version.currency == currency]
    return Offer(model, price, history, states.get(model.name, "none"))


def _states() -> dict[str, State]:
    """By model, from what its deployments said of themselves lately."""
    deployments = selectors.enabled_deployments()
    said = status.read(deployment.id for deployment in deployments)
    health: dict[str, list[bool | None]] = {}
    for deployment in deployments:
        report = said.get(deployment.id)
        health.setdefault(deployment.model, []).append(report.is_healthy if report else None)
    return {model: _state(reports) for model, reports in health.items()}


def _state(reports: list[bool | None]) -> State:
    if all(report is None for report in reports):
        return "unknown"
    if not any(reports):
        return "down"
    return "up" if all(report is not False for report in reports) else "partly"


def speeds() -> dict[str, Speed]:
    """By model, of those that were called. Two queries."""
    now = timezone.now()
    rows = service.by_group(
        "model", ServiceFilters(), now - MEASURED_OVER, now, grain_s=MEASURED_GRAIN_S, limit=MODELS_MEASURED
    )
    return {model: _speed(sums) for model, sums in rows}


def _speed(sums: ServiceSums) -> Speed:
    itl_ms = sums.percentile_ms(Latency.ITL, 50)
    own = sum(sums.failed[name] for name in OWN_FAULTS)
    return Speed(
        sums.percentile_ms(Latency.TTFT, 50),
        sums.percentile_ms(Latency.TTFT, 95),
        1000 / itl_ms if itl_ms else None,
        1 - own / sums.requests if sums.requests else None,
    )


def price_chart(offer: Offer) -> dict[str, Any] | None:
    """The list price's versions as steps over time, oldest first: seconds since 1970, and whole currency units per
    million tokens. A version that ended gives way to the one before it. None where there is no price."""
    versions = sorted(offer.history, key=lambda version: version.effective_from)
    if not versions:
        return None
    now = timezone.now()
    moments = {version.effective_from for version in versions} | {
        version.effective_until for version in versions if version.effective_until
    }
    steps = [(moment, _in_force(versions, moment)) for moment in sorted(moments)]
    kinds = {"input": "input_nano", "cached": "cached_input_nano", "output": "output_nano"}
    return {
        "times": [int(moment.timestamp()) for moment, _ in steps],
        "now": int(now.timestamp()),
        "currency": versions[0].currency,
        "series": {name: [_units(version, field) for _, version in steps] for name, field in kinds.items()},
    }


def _in_force(versions: list[PriceInfo], moment: Any) -> PriceInfo | None:
    """As pricing.selectors chooses: of those in force, the one that began last."""
    valid = [
        version
        for version in versions
        if version.effective_from <= moment and (version.effective_until is None or version.effective_until > moment)
    ]
    return valid[-1] if valid else None


def _units(version: PriceInfo | None, field: str) -> float | None:
    if version is None:
        return None
    nano = getattr(version, field)
    return (version.input_nano if nano is None else nano) / 1e9
