"""Histograms of latencies: percentiles from their buckets, and which calls are counted in which."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from billing.accounts.models import BillingAccount
from billing.rollups import histograms, services
from billing.rollups.histograms import Latency
from billing.rollups.models import ServiceRollup
from tests.factories.billing import USD, make_account, make_calls, make_price

EVE = datetime(2026, 5, 31, 23, 50, tzinfo=UTC)
NOW = datetime(2026, 6, 1, 1, 5, tzinfo=UTC)


@pytest.fixture
def ada(db: None) -> BillingAccount:
    return make_account(credit_nano=100 * USD)


def test_percentiles_are_exact_to_a_bucket(ada: BillingAccount) -> None:
    chance = random.Random(3)
    price = make_price()
    ttfts = sorted(chance.lognormvariate(4, 1.5) for _ in range(200))
    for ttft in ttfts:
        make_calls(ada, price, ttft_ms=ttft, duration_ms=ttft + 990, completion_tokens=100, started_at=EVE)
    services.take_pending(now=NOW, batch=70)
    row = ServiceRollup.objects.get(organization_id=ada.organization_id, grain_s=3600)
    kinds = histograms.split({packed >> 32: packed & 0xFFFFFFFF for packed in row.histogram})
    for percent in (50, 95, 99, 100):
        exact = ttfts[round(len(ttfts) * percent / 100) - 1]
        found = histograms.percentile_ms(kinds[Latency.TTFT], percent)
        assert found is not None
        assert exact / 1.19 <= found <= exact * 1.19
    itl = histograms.percentile_ms(kinds[Latency.ITL], 50)
    assert itl is not None
    assert 10 / 1.19 <= itl <= 10 * 1.19
    assert sum(kinds[Latency.E2E].values()) == 200


def test_a_plain_call_has_no_first_token_time(ada: BillingAccount) -> None:
    make_calls(ada, make_price(), is_stream=False, started_at=EVE)
    services.take_pending(now=NOW)
    row = ServiceRollup.objects.get(organization_id=ada.organization_id, grain_s=3600)
    assert [packed >> 32 >> 8 for packed in row.histogram] == [Latency.E2E]


def test_nothing_counted_has_no_percentile() -> None:
    assert histograms.percentile_ms({}, 95) is None


def test_buckets_meet_and_rise() -> None:
    for bucket in range(1, histograms.BUCKETS):
        assert histograms.bounds_ms(bucket)[0] == pytest.approx(histograms.bounds_ms(bucket - 1)[1])
