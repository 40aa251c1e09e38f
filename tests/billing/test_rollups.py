"""Rollups: exact with what is pending, whatever the order of ends, and equal to the records when made again."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.rollups import latencies, selectors, services
from billing.rollups.divisions import EVERYTHING, Only
from billing.rollups.histograms import Latency
from billing.rollups.models import (
    ALL_ORGANIZATIONS,
    EndUserRollup,
    KeyRollup,
    MonthRollup,
    ProjectRollup,
    RollupPending,
    ServiceRollup,
    UsageRollup,
)
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.models import UsageRecord
from billing.usage.services import finish_records, open_records
from tests.factories.billing import USD, ending, make_account, make_calls, make_price, opening

# Ten to midnight of the last day of a month.
EVE = datetime(2026, 5, 31, 23, 50, tzinfo=UTC)
NOW = datetime(2026, 6, 1, 1, 5, tzinfo=UTC)
GROUPS = ("total", "model", "project", "api_key", "status", "protocol", "end_user", "hour", "day", "month")
ZONES = ("UTC", "America/New_York", "Asia/Kathmandu")


@pytest.fixture
def ada(db: None) -> BillingAccount:
    return make_account(credit_nano=100 * USD)


def scatter(account: BillingAccount, count: int = 60, *, seed: int = 1) -> list[uuid.UUID]:
    """Calls around the border of a day and a month, of several keys, models and endings."""
    chance = random.Random(seed)
    prices = [make_price("m", at=EVE - timedelta(days=300)), make_price("n", at=EVE - timedelta(days=300))]
    ids = []
    for _ in range(count):
        status = chance.choice(["completed", "completed", "cancelled", "failed"])
        prompt = chance.randrange(10, 5000)
        completion = 0 if status == "failed" else chance.randrange(1, 900)
        ids += make_calls(
            account,
            chance.choice(prices),
            api_key_id=chance.choice([None, 1, 2]),
            project_id=chance.choice([1, 2]),
            deployment_id=chance.choice([None, 7]),
            end_user=chance.choice(["", "eve"]),
            started_at=EVE + timedelta(seconds=chance.uniform(-90_000, 4_000)),
            status=status,
            prompt_tokens=prompt,
            cached_tokens=prompt // 3,
            completion_tokens=completion,
            error_code="engine_overloaded" if status == "failed" else "",
            ttft_ms=chance.uniform(5, 900),
            duration_ms=chance.uniform(1000, 20_000),
        )
    return ids


def from_records(account: BillingAccount, start: datetime, end: datetime, key: Callable[[UsageRecord], str]) -> object:
    """The plain sum over records and corrections."""
    sums: dict[str, list[int]] = {}
    for record in UsageRecord.objects.filter(
        organization_id=account.organization_id, started_at__gte=start, started_at__lt=end
    ).exclude(status="started"):
        for number, row in enumerate([record, *record.adjustments.all()]):
            values = [number == 0, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano]
            group = sums.setdefault(key(record), [0] * 5)
            for index, value in enumerate(values):
                group[index] += int(value or 0)
    return sums


def from_summary(account: BillingAccount, start: datetime, end: datetime, group: str, zone: str = "UTC") -> object:
    return {
        row.key: [row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost_nano]
        for row in selectors.summary(account.organization_id, start, end, group, time_zone=zone)
    }


def local_time(record: UsageRecord, *, zone: ZoneInfo, form: str) -> str:
    return record.started_at.astimezone(zone).strftime(form)


KEYS: dict[str, Callable[[UsageRecord], str]] = {
    "total": lambda record: "",
    "model": lambda record: record.model,
    "project": lambda record: str(record.project_id or ""),
    "api_key": lambda record: str(record.api_key_id or ""),
    "status": lambda record: record.status,
    "protocol": lambda record: record.protocol,
    "end_user": lambda record: record.end_user,
}


class TestSums:
    @pytest.mark.parametrize("taken", ["nothing", "a part", "all"])
    def test_every_group_is_exact_whatever_is_pending(self, ada: BillingAccount, taken: str) -> None:
        scatter(ada, 30)
        if taken != "nothing":
            services.take_pending(now=NOW)
        if taken == "a part":
            scatter(ada, 30, seed=2)
        start, end = EVE - timedelta(hours=20, minutes=7), EVE + timedelta(minutes=41, seconds=3)
        for group, key in KEYS.items():
            assert from_summary(ada, start, end, group) == from_records(ada, start, end, key), group

    @pytest.mark.parametrize("zone", ZONES)
    def test_days_and_months_are_those_of_the_zone_to_the_minute(self, ada: BillingAccount, zone: str) -> None:
        scatter(ada)
        services.take_pending(now=NOW)
        start, end = EVE - timedelta(days=2), EVE + timedelta(hours=2)
        for group, form in {"hour": "%Y-%m-%dT%H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}.items():
            expected = from_records(
                ada, start, end, lambda r, f=form: r.started_at.astimezone(ZoneInfo(zone)).strftime(f)
            )
            assert from_summary(ada, start, end, group, zone) == expected, group

    @pytest.mark.parametrize(
        "only", [EVERYTHING, Only(model="m"), Only(api_key_id=1), Only(project_id=1), Only(end_user="eve")]
    )
    def test_whole_days_of_keys_and_endings_are_exact(self, ada: BillingAccount, only: Only) -> None:
        """They are read from other rollups than the hours at the edges, and than the rest of the groups."""
        scatter(ada, 30)
        services.take_pending(now=NOW)
        scatter(ada, 30, seed=2)
        start, end = EVE - timedelta(days=3, minutes=7), EVE + timedelta(minutes=41, seconds=3)
        assert KeyRollup.objects.exists()
        assert EndUserRollup.objects.exists()
        chosen = {name: getattr(only, name) for name in only.columns}
        for group in ("project", "api_key", "end_user"):
            expected: dict[str, int] = {}
            for record in UsageRecord.objects.filter(started_at__gte=start, started_at__lt=end, **chosen):
                key = KEYS[group](record)
                expected[key] = expected.get(key, 0) + int(record.cost_nano or 0)
            found = selectors.summary(ada.organization_id, start, end, group, only=only)
            assert {row.key: row.cost_nano for row in found} == expected, group
        ended, by_status = (
            {row.key: row.requests for row in selectors.summary(ada.organization_id, start, end, group, only=only)}
            for group in ("ending", "status")
        )
        assert {key: count for key, count in ended.items() if count} == by_status

    def test_a_call_that_ends_late_counts_when_it_started(self, ada: BillingAccount) -> None:
        price = make_price()
        row = opening(ada, price, started_at=EVE)
        open_records([row])
        services.take_pending(now=NOW)
        assert selectors.summary(ada.organization_id, EVE, NOW) == []
        finish_records([ending(row.request_id, finished_at=NOW)])
        services.take_pending(now=NOW)
        [day] = selectors.summary(ada.organization_id, EVE - timedelta(days=1), NOW, "day")
        assert (day.key, day.requests) == ("2026-05-31", 1)

    def test_a_correction_counts_in_the_bucket_of_its_record_and_is_no_request(self, ada: BillingAccount) -> None:
        [request_id] = make_calls(ada, make_price(), started_at=EVE)
        services.take_pending(now=NOW)
        record = UsageRecord.objects.get(request_id=request_id)
        adjust_record(record=record, status="completed", counts=Counts(1000, 900, 150, 0), key="k", reason="r", now=NOW)
        for _ in range(2):
            [total] = selectors.summary(ada.organization_id, EVE - timedelta(hours=2), NOW)
            assert (total.requests, total.completion_tokens, total.cost_nano) == (1, 150, 434_500)
            services.take_pending(now=NOW)

    def test_one_query_and_no_record_is_read_twice(
        self, ada: BillingAccount, django_assert_num_queries: object
    ) -> None:
        scatter(ada, 5)
        with django_assert_num_queries(1):  # type: ignore[operator]
            selectors.summary(ada.organization_id, EVE - timedelta(days=40), NOW, "day", time_zone="Asia/Kolkata")


class TestRanking:
    def test_the_largest_come_first_and_the_others_are_one_row(self, ada: BillingAccount) -> None:
        price = make_price()
        for key, count in ((1, 1), (2, 3), (3, 2), (4, 1)):
            make_calls(ada, price, count, api_key_id=key, started_at=EVE)
        services.take_pending(now=NOW)
        start = EVE - timedelta(hours=2)
        found = selectors.ranking(ada.organization_id, start, NOW, "api_key", limit=2)
        assert [(row.key, row.requests) for row in found.rows] == [("2", 3), ("3", 2)]
        assert found.rest is not None
        assert (found.rest.requests, found.rest_count) == (2, 2)
        everything = selectors.ranking(ada.organization_id, start, NOW, "api_key", limit=4)
        assert (len(everything.rows), everything.rest, everything.rest_count) == (4, None, 0)

    @pytest.mark.parametrize("group", ["api_key", "project", "model", "end_user", "day"])
    def test_costs_are_those_of_the_summary_and_the_highest_come_first(self, ada: BillingAccount, group: str) -> None:
        price = make_price()
        for key, count in ((1, 1), (2, 3), (3, 2)):
            make_calls(ada, price, count, api_key_id=key, started_at=EVE)
            services.take_pending(now=NOW)
        make_calls(ada, price, 1, api_key_id=4, started_at=EVE)
        start = EVE - timedelta(hours=2)
        found = selectors.costs(ada.organization_id, start, NOW, group)
        assert found == {row.key: row.cost_nano for row in selectors.summary(ada.organization_id, start, NOW, group)}
        if group == "api_key":
            assert list(selectors.costs(ada.organization_id, start, NOW, group, limit=2)) == ["2", "3"]


class TestOverTime:
    @pytest.mark.parametrize("only", [EVERYTHING, Only(model="m"), Only(project_id=1)])
    @pytest.mark.parametrize(
        ("zone", "step"), [("UTC", "day"), ("Asia/Tokyo", "day"), ("UTC", "hour"), ("Asia/Kathmandu", "hour")]
    )
    def test_keys_and_all_other_keys_are_exact_by_step(
        self, ada: BillingAccount, only: Only, zone: str, step: str
    ) -> None:
        scatter(ada, 30)
        services.take_pending(now=NOW)
        scatter(ada, 10, seed=2)
        start, end = EVE - timedelta(days=3, minutes=7), EVE + timedelta(minutes=41, seconds=3)
        form = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00"}[step]
        chosen = {name: getattr(only, name) for name in only.columns}
        expected: dict[str | None, dict[str, int]] = {"1": {}}
        for record in UsageRecord.objects.filter(started_at__gte=start, started_at__lt=end, **chosen):
            steps = expected.setdefault("1" if record.api_key_id == 1 else None, {})
            at = record.started_at.astimezone(ZoneInfo(zone)).strftime(form)
            steps[at] = steps.get(at, 0) + int(record.cost_nano or 0)
        found = selectors.over_time(
            ada.organization_id, start, end, step, group_by="api_key", keys=["1"], time_zone=zone, only=only
        )
        assert {key: {at: sums.cost_nano for at, sums in steps.items()} for key, steps in found.items()} == expected

    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
    @pytest.mark.parametrize("group", ["project", "end_user"])
    def test_days_of_a_zone_add_up_for_projects_and_end_users(self, ada: BillingAccount, group: str, zone: str) -> None:
        scatter(ada, 30)
        services.take_pending(now=NOW)
        scatter(ada, 10, seed=2)
        start, end = EVE - timedelta(days=3, minutes=7), EVE + timedelta(minutes=41, seconds=3)
        [asked] = selectors.leaders(ada.organization_id, start, end, group, limit=1).keys
        expected: dict[str | None, dict[str, int]] = {asked: {}}
        for record in UsageRecord.objects.filter(started_at__gte=start, started_at__lt=end):
            steps = expected.setdefault(asked if KEYS[group](record) == asked else None, {})
            at = record.started_at.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d")
            steps[at] = steps.get(at, 0) + int(record.cost_nano or 0)
        found = selectors.over_time(
            ada.organization_id, start, end, "day", group_by=group, keys=[asked], time_zone=zone
        )
        assert {key: {at: sums.cost_nano for at, sums in steps.items()} for key, steps in found.items()} == expected


class TestLongRanges:
    @pytest.mark.parametrize("group", ["total", "project", "api_key", "end_user", "month"])
    def test_ninety_days_are_exact_from_the_longest_rollups_that_fit(self, ada: BillingAccount, group: str) -> None:
        price = make_price(at=EVE - timedelta(days=300))
        for number in range(0, 100, 3):
            make_calls(
                ada,
                price,
                started_at=EVE - timedelta(days=number, hours=number % 7),
                api_key_id=number % 4 or None,
                project_id=number % 3 + 1,
                end_user=("", "eve")[number % 2],
                prompt_tokens=1000 + number,
            )
        services.take_pending(now=NOW)
        make_calls(ada, price, started_at=EVE - timedelta(days=40), api_key_id=1, project_id=1)
        assert set(KeyRollup.objects.values_list("grain_s", flat=True)) == {86_400, 28 * 86_400}
        assert set(ProjectRollup.objects.values_list("grain_s", flat=True)) == {3600, 86_400, 7 * 86_400}
        start, end = EVE - timedelta(days=90, minutes=13), EVE
        key = KEYS.get(group, lambda record: f"{record.started_at:%Y-%m}")
        assert from_summary(ada, start, end, group) == from_records(ada, start, end, key)
        found = selectors.ranking(ada.organization_id, start, end, group, limit=1)
        [total] = selectors.summary(ada.organization_id, start, end)
        rows = [*found.rows, *([found.rest] if found.rest else [])]
        assert sum(row.requests for row in rows) == total.requests
        assert sum(row.cost_nano for row in rows) == total.cost_nano
        assert 1 + found.rest_count == len(selectors.summary(ada.organization_id, start, end, group))

    @pytest.mark.parametrize("days", [(80, 3), (62, 20), (45, 0)])
    def test_what_a_bucket_has_too_much_is_taken_away(self, ada: BillingAccount, days: tuple[int, int]) -> None:
        """Of keys that are used outside the range alone, nothing is left; calls that are pending count once."""
        prices = [make_price(model, at=EVE - timedelta(days=300)) for model in ("m", "n")]

        def call_every(hours: int, **keys: int) -> None:
            for number in range(0, 100 * 24, hours):
                started_at = EVE - timedelta(hours=number, minutes=number % 50)
                status = ("completed", "failed")[number % 3 == 0]
                chosen = {"project_id": number % 3 + 1, "api_key_id": number % 5 + 1, **keys}
                make_calls(ada, prices[number % 2], started_at=started_at, status=status, **chosen)

        call_every(31)
        start, end = (EVE - timedelta(days=number, minutes=13) for number in days)
        for outside in (start - timedelta(minutes=1), start - timedelta(days=2), end + timedelta(seconds=1)):
            make_calls(ada, prices[0], started_at=outside, api_key_id=9, project_id=9)
        services.take_pending(now=NOW)
        call_every(97, api_key_id=6)
        for only in (EVERYTHING, Only(model="m"), Only(statuses=("failed",)), Only(project_id=1)):
            chosen = {name: getattr(only, name) for name in only.columns - {"status"}}
            chosen |= {"status__in": only.statuses} if only.statuses else {}
            records = UsageRecord.objects.filter(started_at__gte=start, started_at__lt=end, **chosen)
            for group in ("api_key", "project", "model", "status"):
                expected: dict[str, list[int]] = {}
                for record in records:
                    sums = expected.setdefault(KEYS[group](record), [0, 0])
                    sums[0] += 1
                    sums[1] += int(record.cost_nano or 0)
                found = selectors.summary(ada.organization_id, start, end, group, only=only)
                assert {row.key: [row.requests, row.cost_nano] for row in found} == expected, (group, only)
                ranked = selectors.ranking(ada.organization_id, start, end, group, limit=2, only=only)
                assert len(ranked.rows) + ranked.rest_count == len(expected), (group, only)

    def test_sums_are_exact_beyond_an_int(self, ada: BillingAccount) -> None:
        price = make_price(input_nano=10**15, cached_input_nano=10**15, output_nano=10**15)
        ids = [make_calls(ada, price, api_key_id=key, started_at=EVE, completion_tokens=9)[0] for key in (1, 1, 2)]
        record = UsageRecord.objects.get(request_id=ids[0])
        adjust_record(record=record, status="completed", counts=Counts(1000, 900, 2, 0), key="k", reason="r", now=NOW)
        expected = {row.key: row.cost_nano for row in selectors.summary(ada.organization_id, EVE, NOW, "api_key")}
        assert selectors.costs(ada.organization_id, EVE, NOW, "api_key") == expected
        assert min(expected.values()) > 2**32


class TestLatencies:
    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles", "Pacific/Auckland"])
    @pytest.mark.parametrize("step", ["hour", "day", "month", "total"])
    def test_a_steps_calls_are_those_of_its_hours(self, ada: BillingAccount, zone: str, step: latencies.Step) -> None:
        """Read from days, with the hours at their edges added or taken away."""
        scatter(ada, 80)
        services.take_pending(now=NOW)
        start, end = (EVE - timedelta(days=3)).replace(minute=0), EVE.replace(minute=0)
        form = {"hour": "%Y-%m-%dT%H:00", "day": "%Y-%m-%d", "month": "%Y-%m", "total": ""}[step]
        taken: dict[str, list[float]] = {}
        for record in UsageRecord.objects.filter(started_at__gte=start, started_at__lt=end, status="completed"):
            taken.setdefault(record.started_at.astimezone(ZoneInfo(zone)).strftime(form), []).append(record.duration_ms)
        found = latencies.over_time(ada.organization_id, start, end, step, time_zone=zone).groups[""][Latency.E2E]
        assert set(found) == set(taken)
        for key, durations in taken.items():
            for percent, measured in zip(latencies.PERCENTS, found[key], strict=True):
                rank = sorted(durations)[max(0, math.ceil(len(durations) * percent / 100) - 1)]
                assert rank / 1.19 <= measured <= rank * 1.19


class TestTaking:
    def test_everything_pending_is_taken_once(self, ada: BillingAccount) -> None:
        make_calls(ada, make_price(), 7)
        assert RollupPending.objects.count() == 7
        assert services.take_pending(now=NOW, batch=3) == 7
        assert services.take_pending(now=NOW) == 0
        assert not RollupPending.objects.exists()

    def test_a_running_call_is_not_pending(self, ada: BillingAccount) -> None:
        open_records([opening(ada, make_price())])
        assert not RollupPending.objects.exists()

    def test_it_counts_for_the_organization_and_for_all_in_each_grain(self, ada: BillingAccount) -> None:
        ben = make_account(credit_nano=USD)
        price = make_price()
        make_calls(ada, price, 2, started_at=EVE)
        make_calls(ben, price, 1, started_at=EVE)
        services.take_pending(now=NOW)
        counts = {
            (row.organization_id, row.grain_s): row.requests for row in ServiceRollup.objects.filter(start__lte=EVE)
        }
        one, two = ada.organization_id, ben.organization_id
        assert counts == {
            (who, grain): number
            for who, number in ((one, 2), (two, 1), (ALL_ORGANIZATIONS, 3))
            for grain in (60, 900, 3600, 86_400)
        }

    def test_failures_are_counted_by_class_and_have_no_latency(self, ada: BillingAccount) -> None:
        price = make_price()
        for code in ("engine_overloaded", "context_length_exceeded", "deadline_exceeded", "device_fault", "lost"):
            make_calls(ada, price, status="failed", error_code=code, started_at=EVE)
        make_calls(ada, price, status="cancelled", error_code="client_closed", started_at=EVE)
        services.take_pending(now=NOW)
        row = ServiceRollup.objects.get(organization_id=ada.organization_id, grain_s=3600)
        classes = ("request", "capacity", "unavailable", "timeout", "engine")
        assert [getattr(row, f"failed_{name}") for name in classes] == [1, 1, 1, 1, 1]
        assert (row.requests, row.cancelled, row.histogram) == (6, 1, [])

    def test_context_is_held_by_the_prompt_all_the_time_and_by_the_output_as_it_grows(
        self, ada: BillingAccount
    ) -> None:
        price, held = make_price(), {"prompt_tokens": 1000, "completion_tokens": 200, "duration_ms": 5000.0}
        make_calls(ada, price, started_at=EVE, ttft_ms=1000.0, **held)
        make_calls(ada, price, started_at=EVE, ttft_ms=None, **held)
        make_calls(ada, price, started_at=EVE, **{**held, "duration_ms": None})
        services.take_pending(now=NOW)
        row = ServiceRollup.objects.get(organization_id=ada.organization_id, grain_s=3600)
        assert row.context_token_ms == (1000 * 5000 + 200 * 4000 // 2) + (1000 * 5000 + 200 * 5000 // 2)

    def test_minutes_are_kept_for_two_days(self, ada: BillingAccount) -> None:
        price = make_price()
        make_calls(ada, price, started_at=NOW - timedelta(hours=3))
        make_calls(ada, price, started_at=NOW - timedelta(hours=50))
        services.take_pending(now=NOW)
        assert ServiceRollup.objects.filter(organization_id=ALL_ORGANIZATIONS, grain_s=60).count() == 1
        services.forget_minutes(now=NOW + timedelta(hours=46))
        assert not ServiceRollup.objects.filter(grain_s__lt=3600).exists()
        assert ServiceRollup.objects.filter(organization_id=ALL_ORGANIZATIONS, grain_s=3600).count() == 2


@pytest.mark.django_db(transaction=True)
class TestRebuilding:
    @pytest.mark.parametrize("days_at_once", [1, 3])
    def test_rebuilt_rollups_equal_the_taken_ones_and_a_repeat_changes_nothing(self, days_at_once: int) -> None:
        ada = make_account(credit_nano=100 * USD)
        scatter(ada, 40)
        services.take_pending(now=NOW, batch=7)
        record = UsageRecord.objects.filter(status="completed")[0]
        counts = Counts(record.prompt_tokens, 0, record.completion_tokens + 7, 0)
        adjust_record(record=record, status="completed", counts=counts, key="k", reason="r", now=NOW)
        services.take_pending(now=NOW)
        kept = rows()
        start, days = EVE - timedelta(days=1), 3
        for _ in range(2):
            for number in range(0, days, days_at_once):
                since = start + timedelta(days=number)
                services.rebuild_days(since, since + timedelta(days=days_at_once), now=NOW)
            assert rows() == kept
        assert services.compare_day(EVE, now=NOW) == []

    def test_what_is_pending_is_counted_once(self) -> None:
        ada = make_account(credit_nano=100 * USD)
        make_calls(ada, make_price(), 3, started_at=EVE)
        services.rebuild_days(EVE, EVE + timedelta(days=1), now=NOW)
        assert not RollupPending.objects.exists()
        [total] = selectors.summary(ada.organization_id, EVE - timedelta(days=1), NOW)
        assert total.requests == 3

    def test_the_comparison_names_a_damaged_bucket_and_the_command_repairs_it(self) -> None:
        ada = make_account(credit_nano=100 * USD)
        make_calls(ada, make_price(), 3, started_at=EVE)
        options = {"start": EVE.date(), "end": EVE.date() + timedelta(days=1)}
        call_command("rebuild_rollups", **options)
        call_command("rebuild_rollups", compare=True, **options)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE billing_usage_rollup SET cost_nano = cost_nano + 1 WHERE grain_s = 3600")
        [found] = services.compare_day(EVE, now=timezone.now())
        assert (found.table, found.key[0]) == ("billing_usage_rollup", ada.organization_id)
        with pytest.raises(CommandError, match="1 buckets differ"):
            call_command("rebuild_rollups", compare=True, **options)
        call_command("rebuild_rollups", **options)
        call_command("rebuild_rollups", compare=True, **options)

    def test_a_damaged_month_is_named_and_made_again_from_its_days(self) -> None:
        ada = make_account(credit_nano=100 * USD)
        make_calls(ada, make_price(), 3, started_at=EVE)
        services.take_pending(now=NOW)
        [month] = MonthRollup.objects.all()
        days = UsageRollup.objects.filter(grain_s=86_400).aggregate(cost=Sum("cost_nano"))
        assert (month.start, month.cost_nano) == (EVE.replace(day=1, hour=0, minute=0, second=0), days["cost"])
        MonthRollup.objects.update(requests=7)
        [found] = services.compare_day(EVE, now=NOW)
        assert (found.table, found.key) == ("billing_month_rollup", (month.start, ada.organization_id))
        services.rebuild_days(EVE, EVE + timedelta(days=1), now=NOW)
        assert services.compare_day(EVE, now=NOW) == []
        assert MonthRollup.objects.get() == month


def rows() -> list[object]:
    """Of every rollup, what it holds."""
    found = []
    for model in (UsageRollup, ProjectRollup, KeyRollup, EndUserRollup, MonthRollup, ServiceRollup):
        names = [field.attname for field in model._meta.concrete_fields]
        found.append(sorted(tuple(map(repr, row)) for row in model.objects.values_list(*names)))
    return found
