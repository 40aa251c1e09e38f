"""Usage and billing pages: what they show ties to the records and the ledger, in few queries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.ledger import selectors as ledger
from billing.rollups.services import take_pending
from billing.usage.models import UsageRecord
from portal.api_keys.models import ApiKey
from portal.api_keys.services import issue
from portal.billing_pages import periods
from portal.catalog.models import Model
from tests.factories.portal import Cast
from tests.factories.usage import use, use_for_days

Browser = Callable[..., Client]


@pytest.fixture
def key(cast: Cast, model: Model) -> ApiKey:
    return issue(project=cast.project, name="laptop", actor=cast.ada).api_key


def page(cast: Cast, name: str, query: str = "", *arguments: Any) -> str:
    return reverse(f"portal:{name}", args=[cast.organization.slug, *arguments]) + query


class TestChart:
    def test_sums_equal_records_and_ledger(self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser) -> None:
        use_for_days([key], model.name, now=timezone.now(), days=30, calls_per_day=3)
        client = signed_in(cast.ada)
        charts = {
            metric: client.get(page(cast, "usage_chart", f"?days=90&metric={metric}")).json()
            for metric in ("tokens", "spend", "requests")
        }
        records = list(UsageRecord.objects.all())
        cost_nano = sum(record.cost_nano for record in records)
        series = [sum(each["values"]) for each in charts["tokens"]["series"]]
        assert series == [
            sum(record.prompt_tokens - record.cached_tokens for record in records),
            sum(record.cached_tokens for record in records),
            sum(record.completion_tokens for record in records),
        ]
        assert sum(charts["requests"]["series"][0]["values"]) == len(records)
        assert round(sum(charts["spend"]["series"][0]["values"]) * 10**9) == cost_nano
        assert ledger.balance_nano(cast.organization.id) == 5_000_000_000 - cost_nano

    def test_days_are_the_readers(self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser) -> None:
        client = signed_in(cast.ada)
        client.cookies["time_zone"] = "Asia%2FTokyo"
        border = datetime.now(UTC).astimezone(ZoneInfo("Asia/Tokyo")).replace(hour=0, minute=0, second=0, microsecond=0)
        use(key, model.name, started_at=border - timedelta(seconds=1), price_at=timezone.now())
        use(key, model.name, started_at=border, price_at=timezone.now())
        chart = client.get(page(cast, "usage_chart", "?days=7&metric=requests")).json()
        assert chart["keys"][-1] == f"{border:%Y-%m-%d}"
        assert chart["series"][0]["values"][-2:] == [1, 1]

    def test_last_day_is_by_hour_and_odd_values_fall_back(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        client = signed_in(cast.ada)
        assert client.get(page(cast, "usage_chart", "?days=1")).json()["by"] == "hour"
        chart = client.get(page(cast, "usage_chart", "?days=x&metric=y")).json()
        assert (len(chart["keys"]), chart["metric"]) == (7, "tokens")


class TestRequests:
    def test_pages_by_keyset_without_gap_or_repeat(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> None:
        now = timezone.now()
        made = [use(key, model.name, started_at=now - timedelta(minutes=n // 2), price_at=now) for n in range(70)]
        client = signed_in(cast.ada)
        seen, after = [], ""
        while True:
            answer = client.get(page(cast, "requests", f"?after={after}"))
            seen += [row.request_id for row in answer.context["page"].rows]
            after = answer.context["page"].next
            if not after:
                break
        assert sorted(seen) == sorted(made)

    def test_filters_narrow_and_stay_in_the_address(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> None:
        other = issue(project=cast.project, name="other", actor=cast.ada).api_key
        failed = use(other, model.name, started_at=timezone.now(), status="failed")
        use(key, model.name, started_at=timezone.now())
        client = signed_in(cast.ada)
        for query in (f"?api_key={other.id}", "?status=failed", f"?status=failed&model={model.name}"):
            rows = client.get(page(cast, "requests", query)).context["page"].rows
            assert [row.request_id for row in rows] == [failed], query
        assert (
            "No request fits" in client.get(page(cast, "requests", "?start=2020-01-01&end=2020-01-02")).content.decode()
        )

    def test_key_of_another_organization_filters_nothing_in(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> None:
        answer = signed_in(cast.cyd).get(f"/o/cyds-organization/usage/requests?api_key={key.id}")
        assert answer.context["page"].rows == []
        assert answer.context["form"].errors["api_key"]

    def test_forged_page_marker_is_not_there(self, cast: Cast, signed_in: Browser) -> None:
        assert signed_in(cast.ada).get(page(cast, "requests", "?after=forged")).status_code == 404

    def test_detail_shows_tokens_cost_and_price(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> None:
        request_id = use(
            key, model.name, started_at=timezone.now(), prompt_tokens=1000, cached_tokens=900, completion_tokens=100
        )
        body = signed_in(cast.ben).get(page(cast, "request", "", request_id)).content.decode()
        # 100 fresh at $0.40, 900 cached at $0.10, 100 out at $2.03 per million.
        for text in ("$0.00004", "$0.00009", "$0.000203", "$0.000333", "laptop", str(request_id)):
            assert text in body


def test_lists_take_the_same_queries_for_any_number_of_records(
    cast: Cast, key: ApiKey, model: Model, signed_in: Browser, django_assert_max_num_queries: Any
) -> None:
    use_for_days([key], model.name, now=timezone.now(), days=3, calls_per_day=20)
    client = signed_in(cast.ada)
    for name, most in (("requests", 10), ("usage", 10), ("dashboard", 12), ("billing", 10), ("ledger", 6)):
        with django_assert_max_num_queries(most):
            assert client.get(page(cast, name)).status_code == 200


def test_the_overview_says_what_failed_and_how_long_calls_took(
    cast: Cast, key: ApiKey, model: Model, signed_in: Browser
) -> None:
    now = timezone.now()
    for status, ttft_ms in (("completed", 200.0), ("completed", 200.0), ("failed", None), ("cancelled", 200.0)):
        use(key, model.name, started_at=now - timedelta(hours=2), status=status, ttft_ms=ttft_ms, price_at=now)
    take_pending(now=now)
    context = signed_in(cast.ben).get(page(cast, "usage", "?days=1")).context
    assert (context["failed"], context["cancelled"], context["failed_share"]) == (1, 1, 0.25)
    assert context["ttft_ms"][0] == pytest.approx(200, rel=0.1)
    assert context["e2e_ms"][1] == pytest.approx(1600, rel=0.1)


def test_empty_pages_say_what_to_do(cast: Cast, signed_in: Browser) -> None:
    client = signed_in(cast.ada)
    texts = {
        "dashboard": "Make your first call",
        "requests": "Open the playground",
        "usage": "make a call",
        "api_keys": "Create API key",
        "limits": "Set a limit",
        "billing": "The first one is made after the end of a month",
        "playground": "publishes them",
        "catalog": "publishes them",
    }
    for name, text in texts.items():
        assert text in client.get(page(cast, name)).content.decode(), name


class TestPeriods:
    def test_days_of_a_clock_change_are_whole(self) -> None:
        with time_machine.travel("2026-10-26T12:00Z", tick=False), timezone.override(ZoneInfo("Europe/Amsterdam")):
            period = periods.last_days(3)
            assert period.start == datetime(2026, 10, 23, 22, tzinfo=UTC)
            assert periods.days_in(period) == ["2026-10-24", "2026-10-25", "2026-10-26"]

    def test_month_begins_at_local_midnight(self) -> None:
        with time_machine.travel("2026-11-30T15:30Z", tick=False), timezone.override(ZoneInfo("Asia/Tokyo")):
            assert periods.this_month().start == datetime(2026, 11, 30, 15, tzinfo=UTC)
