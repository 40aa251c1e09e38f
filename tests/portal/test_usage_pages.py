"""Usage and billing pages: what they show ties to the records and the ledger, in few queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.ledger import selectors as ledger
from billing.rollups import latencies
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
        use_for_days([key], model.name, now=timezone.now(), days=30, calls_per_day=3, price_at=timezone.now())
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
        assert client.get(page(cast, "usage_chart", "?days=1")).json()["step"] == "hour"
        chart = client.get(page(cast, "usage_chart", "?days=x&metric=y")).json()
        assert (len(chart["keys"]), chart["metric"]) == (7, "tokens")


class TestSteps:
    """One day of two keys' calls in the middle of a month, in a zone whose days are not UTC's."""

    NOW = datetime(2026, 6, 15, 12, 0, tzinfo=UTC)

    @pytest.fixture
    def read(
        self, cast: Cast, key: ApiKey, model: Model, signed_in: Browser
    ) -> Iterator[Callable[..., dict[str, Any]]]:
        other = issue(project=cast.project, name="server", actor=cast.ada).api_key
        priced = timezone.now()
        with time_machine.travel(self.NOW, tick=False):
            client = signed_in(cast.ada)
            client.cookies["time_zone"] = "Asia%2FTokyo"
            for hours, ttft_ms in ((2, 100.0), (3, 200.0), (20, 300.0), (24 * 40, 400.0)):
                use(key, model.name, started_at=self.NOW - timedelta(hours=hours), ttft_ms=ttft_ms, price_at=priced)
            use(other, model.name, started_at=self.NOW - timedelta(hours=2), status="failed", price_at=priced)
            use(other, model.name, started_at=self.NOW - timedelta(hours=2), ttft_ms=1000.0, price_at=priced)
            take_pending(now=self.NOW)

            def read(**query: Any) -> dict[str, Any]:
                answer: dict[str, Any] = client.get(page(cast, "usage_chart"), query).json()
                by_label = {
                    series["label"]: {
                        at: value for at, value in zip(answer["keys"], series["values"], strict=True) if value
                    }
                    for series in answer["series"]
                }
                return by_label

            yield read

    def test_hours_days_and_months_have_the_same_sum(self, read: Callable[..., Any]) -> None:
        requests = {
            step: read(days=days, step=step, metric="requests")["Requests"]
            for days, step in ((30, "hour"), (30, "day"), (90, "day"), (365, "month"))
        }
        assert requests == {
            "hour": {"2026-06-15T01:00": 1, "2026-06-15T18:00": 1, "2026-06-15T19:00": 3},
            "day": {"2026-05-06": 1, "2026-06-15": 5},
            "month": {"2026-05": 1, "2026-06": 5},
        }

    def test_errors_are_failed_and_cancelled_and_of_keys_failed(self, read: Callable[..., Any]) -> None:
        assert read(days=7, metric="errors") == {"Failed": {"2026-06-15": 1}, "Cancelled": {}}
        assert read(days=7, metric="errors", split="api_key") == {"server": {"2026-06-15": 1}}

    @pytest.mark.parametrize("split", ["model", "api_key", "project", "end_user"])
    def test_groups_add_up_to_all(self, split: str, read: Callable[..., Any], model: Model) -> None:
        found = read(days=365, step="month", metric="spend", split=split)
        sums = {at: sum(round(values.get(at, 0) * 1e9) for values in found.values()) for at in ("2026-05", "2026-06")}
        whole = read(days=365, step="month", metric="spend")["Spend"]
        assert sums == {at: round(value * 1e9) for at, value in whole.items()}
        names = {"model": {model.name}, "api_key": {"laptop", "server"}, "project": {"Default"}, "end_user": {"none"}}
        assert set(found) == names[split]

    def test_latencies_of_all_a_key_and_of_keys(self, read: Callable[..., Any], key: ApiKey) -> None:
        # To a bucket of the histograms.
        assert read(days=7, metric="ttft")["p50"] == {"2026-06-15": pytest.approx(250, rel=0.2)}
        # From the records, exactly.
        own = read(days=7, metric="ttft", api_key=key.id)
        assert own == {"p50": {"2026-06-15": 200}, "p95": {"2026-06-15": 290}}
        by_key = read(days=7, metric="latency", split="api_key")
        assert by_key["server p95"] == {"2026-06-15": 2400}
        assert by_key["laptop p95"] == {"2026-06-15": pytest.approx(1690)}

    def test_too_many_calls_to_look_at_are_said_to_be(
        self, read: Callable[..., Any], key: ApiKey, cast: Cast, signed_in: Browser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert read(days=90, metric="ttft", api_key=key.id)["p50"] == {"2026-05-06": 400, "2026-06-15": 200}
        client = signed_in(cast.ada)
        client.cookies["time_zone"] = "Asia%2FTokyo"
        query = {"days": 90, "metric": "ttft", "api_key": key.id}
        assert client.get(page(cast, "usage_chart"), query).json()["note"] == ""
        monkeypatch.setattr(latencies, "RECORDS_READ", 2)
        assert read(**query)["p50"] == {"2026-06-15": 150}
        note = client.get(page(cast, "usage_chart"), query).json()["note"]
        assert note == "Of the newest 2 completed calls, from 06/15/2026 6 p.m. on."
        found = client.get(page(cast, "usage"), query)
        assert "Both from" in found.content.decode()
        assert found.context["figures"].ttft_ms[0] == 150

    def test_narrowed_to_a_key_and_to_an_end_user(self, read: Callable[..., Any], key: ApiKey) -> None:
        assert read(days=30, metric="requests", api_key=key.id)["Requests"] == {"2026-06-15": 3}
        assert read(days=30, metric="requests", end_user="nobody")["Requests"] == {}


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
    use_for_days([key], model.name, now=timezone.now(), days=3, calls_per_day=20, price_at=timezone.now())
    client = signed_in(cast.ada)
    for name, most in (("requests", 10), ("usage", 13), ("dashboard", 19), ("billing", 13), ("ledger", 6)):
        with django_assert_max_num_queries(most):
            assert client.get(page(cast, name)).status_code == 200


def test_the_overview_says_what_failed_and_how_long_calls_took(
    cast: Cast, key: ApiKey, model: Model, signed_in: Browser
) -> None:
    now = timezone.now()
    for status, ttft_ms in (("completed", 200.0), ("completed", 200.0), ("failed", None), ("cancelled", 200.0)):
        use(key, model.name, started_at=now - timedelta(hours=2), status=status, ttft_ms=ttft_ms, price_at=now)
    take_pending(now=now)
    figures = signed_in(cast.ben).get(page(cast, "usage", "?days=1")).context["figures"]
    assert (figures.failed, figures.cancelled, figures.failed_share) == (1, 1, 0.25)
    assert figures.ttft_ms[0] == pytest.approx(200, rel=0.1)
    assert figures.e2e_ms[1] == pytest.approx(1600, rel=0.1)


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
