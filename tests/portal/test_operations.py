"""The operations view and the capacity page: what operators read, and that nobody else may."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from api.errors import TABLE
from billing.accounts.models import BillingAccount
from billing.rollups.failures import NAMES
from billing.rollups.service import ServiceFilters
from billing.rollups.services import take_pending
from billing.usage.services import open_records
from inference_grpc.errors import BY_CODE
from portal.catalog.models import Deployment, Model
from portal.operations import economics, reasons
from portal.operations.capacity import Assumptions, Demand, compute, margin
from portal.operations.gauges import Gauge, percentile, slot_of, value_of
from portal.operations.models import DeploymentRollup, DeploymentSample, RefusalCount
from portal.operations.selectors import ViewFilters, view
from portal.operations.services import EngineFigures, Refusals, record_refusals, record_samples, tidy
from portal.operations.titles import TITLES
from portal.quotas.refusals import ADVICE, reason_of
from tests.factories.billing import make_account, make_calls, make_price, opening
from tests.factories.portal import Cast, make_model

Browser = Callable[..., Client]
NOW = datetime(2026, 5, 15, 12, 0, 30, tzinfo=UTC)
PAGES = ["operations", "operations_data", "operations_organizations", "capacity"]


def figures(**changes: int) -> EngineFigures:
    defaults = {
        "running": 4,
        "waiting": 1,
        "max_sequences": 16,
        "pages_used": 50,
        "pages_total": 100,
        "three_bit_pages_used": 0,
        "three_bit_pages_total": 0,
        "prompt_tokens": 1000,
        "prefix_hit_tokens": 400,
        "completion_tokens": 500,
        "drafted_tokens": 200,
        "accepted_tokens": 150,
    }
    return EngineFigures(**{**defaults, **changes})


class TestAccess:
    @pytest.mark.parametrize("name", PAGES)
    def test_pages_do_not_exist_for_members(self, cast: Cast, signed_in: Browser, name: str) -> None:
        address = reverse(f"portal:{name}")
        assert signed_in(cast.ada).get(address).status_code == 404
        assert signed_in(None).get(address).status_code == 302
        assert signed_in(cast.oda).get(address).status_code == 200


class TestView:
    def test_it_shows_latencies_throughput_and_failures_of_the_chosen_minutes(self, db: None) -> None:
        account, price = make_account(credit_nano=10**9), make_price()
        at = NOW - timedelta(minutes=5)
        make_calls(account, price, 3, started_at=at, ttft_ms=100.0, duration_ms=1090.0, deployment_id=7)
        make_calls(account, price, started_at=at, status="failed", completion_tokens=0, error_code="engine_overloaded")
        make_calls(account, price, started_at=NOW - timedelta(hours=2))
        take_pending(now=NOW)
        found = view(ViewFilters(), now=NOW)
        point = found["times"].index(int(at.timestamp()) // 60 * 60)
        for percent in ("p50", "p95", "p99"):
            assert 0.1 / 1.19 <= found["ttft"][percent][point] <= 0.1 * 1.19
            assert 0.01 / 1.19 <= found["itl"][percent][point] <= 0.01 * 1.19
        assert found["throughput"]["output"][point] == 300 / 60
        assert found["failures"] == {"capacity": [int(index == point) for index in range(len(found["times"]))]}
        assert found["sums"]["requests"] == 4
        assert found["groups"][0]["name"] == "m"

    def test_it_says_whose_context_fills_the_cache(self, db: None) -> None:
        ada, ben, price = make_account(credit_nano=10**9), make_account(credit_nano=10**9), make_price()
        at = NOW - timedelta(minutes=3)
        long = {"prompt_tokens": 3000, "completion_tokens": 0, "duration_ms": 20_000.0, "ttft_ms": None}
        make_calls(ada, price, 1, started_at=at, **long)
        make_calls(ben, price, 1, started_at=at, **{**long, "prompt_tokens": 1000})
        take_pending(now=NOW)
        found = view(ViewFilters(group="organization"), now=NOW)
        shares = {group["key"]: group["context_share"] for group in found["groups"]}
        assert shares == {str(ada.organization_id): 0.75, str(ben.organization_id): 0.25}
        point = found["times"].index(int(at.timestamp()) // 60 * 60)
        assert found["context_held"][point] == pytest.approx(4000 * 20 / 60, abs=0.1)
        one = view(ViewFilters(service=ServiceFilters(organization_id=ben.organization_id)), now=NOW)
        assert one["context_held"][point] == pytest.approx(1000 * 20 / 60, abs=0.1)
        assert one["sums"]["context_share"] == 0.25, "of everybody's, though only one is looked at"

    def test_filters_leave_one_model_deployment_or_organization(self, db: None) -> None:
        ada, ben, price = make_account(credit_nano=10**9), make_account(credit_nano=10**9), make_price()
        other = make_price("n")
        at = NOW - timedelta(minutes=3)
        make_calls(ada, price, 1, started_at=at, deployment_id=1)
        make_calls(ada, other, 2, started_at=at, deployment_id=2)
        make_calls(ben, other, 4, started_at=at, deployment_id=2)
        take_pending(now=NOW)
        for chosen, expected in (
            (ServiceFilters(), 7),
            (ServiceFilters(model="n"), 6),
            (ServiceFilters(deployment_id=1), 1),
            (ServiceFilters(organization_id=ada.organization_id), 3),
            (ServiceFilters(model="n", organization_id=ada.organization_id), 2),
        ):
            assert view(ViewFilters(service=chosen), now=NOW)["sums"]["requests"] == expected

    @pytest.mark.parametrize("chosen", ["15m", "24h", "30d"])
    def test_every_range_sums_what_happened_in_it(self, db: None, chosen: str) -> None:
        account, price = make_account(credit_nano=10**9), make_price()
        ages = [timedelta(minutes=5), timedelta(hours=20), timedelta(days=20)]
        for age in ages:
            make_calls(account, price, started_at=NOW - age)
        take_pending(now=NOW)
        found = view(ViewFilters(range=chosen, group="organization"), now=NOW)
        assert found["sums"]["requests"] == ["15m", "24h", "30d"].index(chosen) + 1
        assert [group["requests"] for group in found["groups"]] == [found["sums"]["requests"]]

    def test_an_empty_service_has_a_view(self, db: None) -> None:
        found = view(ViewFilters(), now=NOW)
        assert found["present"]["sampled_at"] is None
        assert found["sums"]["requests"] == 0
        assert json.dumps(found)

    @pytest.mark.parametrize("group", ["model", "deployment", "organization"])
    def test_a_group_leads_to_its_page_and_to_a_view_of_it(
        self, cast: Cast, signed_in: Browser, group: Any, model: Model
    ) -> None:
        deployment = Deployment.objects.get(model=model)
        account = BillingAccount.objects.get(organization=cast.organization)
        now = timezone.now()
        price = make_price(model.name, at=now - timedelta(days=9))
        make_calls(account, price, started_at=now - timedelta(minutes=2), deployment_id=deployment.id)
        take_pending(now=now)
        browser = signed_in(cast.oda)
        answer = browser.get(reverse("portal:operations_data"), {"group": group}).json()
        [row] = answer["groups"]
        assert browser.get(row["page"]).status_code == 200
        narrowed = browser.get(reverse("portal:operations_data"), {"group": group, group: row["only"]}).json()
        assert [each["key"] for each in narrowed["groups"]] == [row["key"]]

    def test_unknown_filters_are_refused_by_name(self, cast: Cast, signed_in: Browser) -> None:
        answer = signed_in(cast.oda).get(reverse("portal:operations_data"), {"organization": "nobody"})
        assert answer.status_code == 400
        assert "organization" in answer.json()["errors"]

    def test_it_takes_few_queries(self, db: None, django_assert_max_num_queries: Any) -> None:
        with django_assert_max_num_queries(12):
            view(ViewFilters(group="organization", service=ServiceFilters(model="m")), now=NOW)


class TestSamples:
    def test_gauges_and_shares_come_from_the_samples(self, db: None) -> None:
        deployment = Deployment.objects.get(model=make_model())
        account = make_account(credit_nano=10**9)
        open_records([opening(account, make_price(), deployment_id=deployment.id)])
        start = NOW - timedelta(seconds=25)
        record_samples({deployment.id: figures(pages_used=20)}, now=start)
        later = figures(
            pages_used=80,
            prompt_tokens=2000,
            prefix_hit_tokens=900,
            completion_tokens=800,
            drafted_tokens=300,
            accepted_tokens=230,
        )
        record_samples({deployment.id: later}, now=start + timedelta(seconds=10))
        found = view(ViewFilters(), now=NOW)
        gauges, point = found["gauges"], found["times"].index(int(start.timestamp()) // 60 * 60)
        assert (gauges["kv"]["p50"][point], gauges["kv"]["p99"][point]) == (0.2, 0.8)
        assert (gauges["running"][point], gauges["waiting"][point], gauges["streams"][point]) == (4, 1, 1)
        assert (gauges["prefix_hit"][point], gauges["acceptance"][point]) == (0.5, 0.8)
        present = dict(found["present"])
        [row] = present.pop("deployments")
        assert (row["state"], row["running"], row["kv"], row["output_per_s"]) == ("answers", 4, 0.8, 30.0)
        assert present | {"output_per_s": 0} == {
            "enabled": 1,
            "engines": 1,
            "answering": 1,
            "sampled_at": int(start.timestamp()) + 10,
            "streams": 1,
            "calls": 1,
            "running": 4,
            "waiting": 1,
            "capacity": 16,
            "pages_used": 80,
            "pages_total": 100,
            "three_bit_pages_used": 0,
            "three_bit_pages_total": 0,
            "kv": 0.8,
            "output_per_s": 0,
        }
        assert found["present"]["output_per_s"] == 30.0

    def test_a_cache_in_two_stages_is_as_full_as_its_shorter_kind(self, db: None) -> None:
        """Newcomers wait for it, whichever it is; of all deployments together likewise."""
        one, other = (Deployment.objects.get(model=make_model(name)) for name in ("one", "other"))
        staged = figures(three_bit_pages_used=180, three_bit_pages_total=200)
        record_samples({one.id: staged, other.id: figures(pages_used=60)}, now=NOW - timedelta(seconds=5))
        found = view(ViewFilters(), now=NOW)
        present = found["present"]
        assert {row["name"]: row["kv"] for row in present["deployments"]} == {"one": 0.9, "other": 0.6}
        assert (present["pages_used"], present["pages_total"], present["kv"]) == (110, 200, 0.9)
        assert (present["three_bit_pages_used"], present["three_bit_pages_total"]) == (180, 200)
        assert max(value for value in found["gauges"]["kv"]["p99"] if value is not None) == 0.9

    def test_an_engine_that_fell_silent_adds_nothing_to_now(self, db: None) -> None:
        deployment = Deployment.objects.get(model=make_model())
        for seconds in (0, 5, 10):
            sample = figures(completion_tokens=100 * seconds)
            record_samples({deployment.id: sample}, now=NOW - timedelta(seconds=20 - seconds))
        assert view(ViewFilters(), now=NOW)["present"]["output_per_s"] == 100.0
        record_samples({deployment.id: None}, now=NOW - timedelta(seconds=5))
        present = view(ViewFilters(), now=NOW)["present"]
        assert (present["engines"], present["answering"], present["output_per_s"], present["kv"]) == (1, 0, 0.0, None)
        assert [row["state"] for row in present["deployments"]] == ["silent"]
        Deployment.objects.update(is_enabled=False)
        assert view(ViewFilters(), now=NOW)["present"]["enabled"] == 0

    def test_a_restart_is_no_throughput(self, db: None) -> None:
        deployment = Deployment.objects.get(model=make_model())
        for seconds, tokens in ((0, 9000), (5, 50), (10, 150)):
            record_samples(
                {deployment.id: figures(completion_tokens=tokens)}, now=NOW - timedelta(seconds=20 - seconds)
            )
        assert view(ViewFilters(), now=NOW)["present"]["output_per_s"] == 20.0

    def test_a_restarted_engine_counts_from_zero(self, db: None) -> None:
        record_samples({1: figures(completion_tokens=5000)}, now=NOW)
        record_samples({1: figures(completion_tokens=70)}, now=NOW + timedelta(seconds=5))
        assert DeploymentRollup.objects.get(grain_s=3600).completion_tokens == 70

    def test_a_deployment_that_gives_no_figures_is_sampled_all_the_same(self, db: None) -> None:
        record_samples({1: None}, now=NOW)
        row = DeploymentRollup.objects.get(grain_s=60)
        assert (row.samples, row.answered) == (1, 0)

    def test_old_samples_and_minutes_are_forgotten(self, db: None) -> None:
        record_samples({1: figures()}, now=NOW)
        tidy(now=NOW + timedelta(hours=2))
        assert not DeploymentSample.objects.exists()
        assert DeploymentRollup.objects.count() == 3
        tidy(now=NOW + timedelta(hours=49))
        assert [row.grain_s for row in DeploymentRollup.objects.all()] == [3600]

    def test_percentiles_of_gauges(self) -> None:
        slots = {slot_of(Gauge.KV_PERCENT, value): 1 for value in range(1, 101)}
        assert [percentile(slots, Gauge.KV_PERCENT, percent) for percent in (50, 95, 99)] == [50, 95, 99]
        assert percentile(slots, Gauge.WAITING, 50) is None
        for value in (0, 1, 2, 7, 100, 5000):
            assert value_of(slot_of(Gauge.WAITING, value)) == pytest.approx(value, rel=0.1)


class TestRefusals:
    def test_a_repeated_flush_counts_once_and_gateways_add_up(self, db: None) -> None:
        minute = NOW.replace(second=0)
        for count in (1, 3, 2):
            record_refusals("one", [Refusals(minute, "insufficient_quota", 5, count)])
        record_refusals(
            "two", [Refusals(minute, "insufficient_quota", 0, 4), Refusals(minute, "invalid_api_key", 0, 1)]
        )
        found = view(ViewFilters(), now=NOW)["refusals"]
        assert {code: sum(counts) for code, counts in found.items()} == {"insufficient_quota": 7, "invalid_api_key": 1}
        assert list(found) == ["insufficient_quota", "invalid_api_key"]
        of_one = view(ViewFilters(service=ServiceFilters(organization_id=5)), now=NOW)["refusals"]
        assert {code: sum(counts) for code, counts in of_one.items()} == {"insufficient_quota": 3}

    def test_each_reason_names_the_organizations_that_met_it_most(self, cast: Cast) -> None:
        minute = NOW.replace(second=0)
        known = cast.organization
        counts = [(known.id, 9), (0, 4), (known.id + 900, 2), (known.id + 901, 1)]
        rows = [Refusals(minute, "rate_limit_requests", number, count) for number, count in counts]
        record_refusals("one", [*rows, Refusals(minute, "invalid_json", known.id, 3)])
        first, second = view(ViewFilters(), now=NOW)["refused"]
        assert (first["code"], first["count"]) == ("rate_limit_requests", 16)
        page = reverse("portal:operator_organization", args=[known.slug])
        assert first["organizations"] == [{"name": known.name, "page": page, "count": 9}]
        assert (second["code"], second["count"]) == ("invalid_json", 3)

    def test_every_refusal_and_failure_has_words(self) -> None:
        assert set(reasons.REMEDIES) == set(TABLE)
        assert set(reasons.FAILURES) == {*NAMES, "cancelled"}
        assert set(reasons.OURS) < set(TABLE)
        assert set(TABLE) < set(TITLES)
        assert set(ADVICE) < set(TITLES)
        assert set(BY_CODE) < set(TITLES)
        assert len({str(title) for title in TITLES.values()}) == len(TITLES)
        assert reason_of("device_fault").title == "Fault of a device"
        assert reason_of("of a later version").title == "Error of the service"

    def test_old_minutes_become_hours_once(self, db: None) -> None:
        hour = NOW.replace(minute=0, second=0)
        for number in range(3):
            record_refusals("one", [Refusals(hour + timedelta(minutes=number), "deadline_exceeded", 0, 2)])
        for _ in range(2):
            tidy(now=NOW + timedelta(hours=49))
        [row] = RefusalCount.objects.all()
        assert (row.grain_s, row.start, row.gateway_id, row.count) == (3600, hour, "", 6)


class TestCapacity:
    @pytest.mark.parametrize(
        ("tokens_per_s", "gpu_hours", "millions"), [("253.9", "1.094", 461), ("387.6", "0.717", 703)]
    )
    def test_it_gives_the_reference_figures(self, tokens_per_s: str, gpu_hours: str, millions: int) -> None:
        made = compute(Assumptions(Decimal(tokens_per_s), 1, 2_000_000_000, Decimal("0.70")))
        assert made.gpu_hours_per_million.quantize(Decimal("0.001")) == Decimal(gpu_hours)
        assert round(made.tokens_per_gpu_month / 1_000_000) == millions

    def test_idle_time_is_paid_for_by_the_tokens(self) -> None:
        full = compute(Assumptions(Decimal(1000), 2, 3_600_000_000, Decimal(1)))
        half = compute(Assumptions(Decimal(1000), 2, 3_600_000_000, Decimal("0.5")))
        assert (full.cost_per_million_nano, half.cost_per_million_nano) == (2_000_000_000, 4_000_000_000)
        assert full.tokens_per_gpu_month == 2 * half.tokens_per_gpu_month

    def test_margin_and_gpus_of_a_demand(self) -> None:
        demand = Demand(Decimal(30), 1_500_000_000, 3_000_000_000_000, 1_500_000_000)
        made = compute(Assumptions(Decimal("387.6"), 1, 2_000_000_000, Decimal("0.70")))
        assert demand.revenue_per_million_nano == 2_000_000_000
        assert demand.gpus_needed(made) == 3
        assert margin(2_000_000_000, 500_000_000) == Decimal("0.75")
        assert margin(0, 1) is None

    @pytest.mark.parametrize("change", [{"tokens_per_s": Decimal(0)}, {"gpus": 0}, {"load": Decimal("1.1")}])
    def test_impossible_assumptions_are_refused(self, change: dict[str, Any]) -> None:
        defaults = {"tokens_per_s": Decimal(1), "gpus": 1, "gpu_hour_nano": 1, "load": Decimal(1)}
        with pytest.raises(ValueError, match="load"):
            Assumptions(**{**defaults, **change})

    def test_throughput_is_the_best_busy_hour(self, model: Model) -> None:
        deployment = Deployment.objects.get(model=model)
        for hour, tokens in ((3, 6000), (2, 24_000), (1, 12_000)):
            at = NOW - timedelta(hours=hour)
            for step in range(14):
                sample = figures(completion_tokens=tokens * step // 60)
                record_samples({deployment.id: sample}, now=at + timedelta(seconds=5 * step))
        best = economics.measured_throughput(now=NOW)[model.name]
        assert best.tokens_per_s == Decimal("80.0")
        assert best.hour == NOW.replace(hour=10, minute=0, second=0)

    def test_page_and_command_agree(self, cast: Cast, model: Model, signed_in: Browser) -> None:
        answer = signed_in(cast.oda).get(reverse("portal:capacity"), {"tokens_per_s": "387.6", "compare_with": "253.9"})
        text = answer.content.decode()
        for expected in ("0.717", "1.094", "703M", "461M", "34.5 % less"):
            assert expected in text
        output = StringIO()
        call_command("capacity", tokens_per_s="387.6", gpu_hour="2", load="70", stdout=output)
        assert "0.717 GPU-hours per million, 703 million tokens per GPU and 30-day month, $2.05" in output.getvalue()

    def test_odd_assumptions_are_named(self, cast: Cast, signed_in: Browser) -> None:
        answer = signed_in(cast.oda).get(reverse("portal:capacity"), {"load": "170"})
        assert answer.status_code == 400
        assert "less than or equal to 100" in answer.content.decode()
        with pytest.raises(CommandError, match="--load"):
            call_command("capacity", load="0")

    def test_revenue_comes_from_what_was_sold(self, model: Model, db: None) -> None:
        account: BillingAccount = make_account(credit_nano=10**9)
        now = timezone.now()
        price = make_price(model.name, at=now - timedelta(days=9))
        make_calls(account, price, 2, started_at=now - timedelta(days=2))
        take_pending(now=now)
        [row] = economics.by_model(
            gpus=1, gpu_hour_nano=2_000_000_000, load=Decimal("0.7"), tokens_per_s=Decimal(100), now=now
        )
        assert (row.demand.output_tokens, row.demand.revenue_nano) == (200, 666_000)
        assert row.revenue_per_million_nano == 3_330_000_000
        assert row.margin_share is not None
        assert row.margin_share < 0

    def test_every_figure_of_a_model_is_as_computed_by_hand(self, model: Model, db: None) -> None:
        """1,000 tokens/s on 2 GPUs at $3.60 an hour and half load. A million tokens: 1,000 s of 2 GPUs, 2,000 s, 0.5556
        GPU-hours, $2.00 of work and so $4.00 paid for. A GPU in 30 days: 500 tokens/s x 0.5 x 2,592,000 s.
        """
        account: BillingAccount = make_account(credit_nano=10**15)
        now = timezone.now()
        price = make_price(model.name, at=now - timedelta(days=9))
        # Nothing but output: 2 x 1,000,000 tokens at $2.03.
        make_calls(
            account,
            price,
            2,
            started_at=now - timedelta(days=2),
            prompt_tokens=0,
            cached_tokens=0,
            completion_tokens=1_000_000,
        )
        take_pending(now=now)
        [row] = economics.by_model(
            gpus=2, gpu_hour_nano=3_600_000_000, load=Decimal("0.5"), tokens_per_s=Decimal(1000), now=now
        )
        assert row.made is not None
        assert round(row.made.gpu_hours_per_million, 4) == Decimal("0.5556")
        assert row.made.cost_per_million_nano == 4_000_000_000
        assert row.made.tokens_per_gpu_month == 648_000_000
        assert row.revenue_per_million_nano == 2_030_000_000
        assert row.margin_nano == -1_970_000_000
        assert row.margin_share is not None
        assert round(row.margin_share, 4) == Decimal("-0.9704")
        assert row.gpus_needed == 1

    def test_what_is_paid_in_another_currency_is_demand_alone(self, model: Model, db: None, settings: Any) -> None:
        settings.BILLING_CURRENCIES = ["USD", "EUR"]
        now = timezone.now()
        for currency, calls in (("USD", 2), ("EUR", 3)):
            account = make_account(credit_nano=10**9, currency=currency)
            price = make_price(
                model.name, at=now - timedelta(days=9), currency=currency, output_nano=len(currency) * 10**9
            )
            make_calls(account, price, calls, started_at=now - timedelta(days=2), prompt_tokens=0, cached_tokens=0)
        take_pending(now=now)
        [row] = economics.by_model(gpus=1, gpu_hour_nano=10**9, load=Decimal(1), tokens_per_s=Decimal(100), now=now)
        assert (row.demand.output_tokens, row.demand.paid_tokens) == (500, 200)
        assert row.revenue_per_million_nano == 3 * 10**9
