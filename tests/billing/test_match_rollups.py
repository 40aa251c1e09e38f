"""Match rates read the same from the calls, from rollups, and from both after late changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from billing.reconciliation import rollups
from billing.reconciliation.models import MatchHour, MatchRollup
from billing.reconciliation.selectors import day_rates, match_rates, mismatches, organization_rates, read_period
from billing.reconciliation.services import apply_receipts
from tests.factories.billing import NOON, USD, make_account, make_calls, make_price, receipt

pytestmark = pytest.mark.django_db

START, END = NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1)
NOW = NOON + timedelta(hours=9, minutes=30)


def everything(now: datetime = NOW) -> dict[str, Any]:
    return {
        "by organization": match_rates(START, END),
        "by day": day_rates(read_period(START, END)),
        "organizations": organization_rates(read_period(START, END), limit=10),
        "mismatches": mismatches(read_period(START, END), now=now),
    }


def make_day() -> tuple[Any, Any]:
    """Of two organizations: equal, differing and missing receipts, and one of nobody."""
    price = make_price()
    ada, ben = make_account(credit_nano=USD), make_account(credit_nano=USD)
    equal, differs, _ = make_calls(ada, price, 3)
    [alone] = make_calls(ben, price)
    rows = [receipt(1, equal, ada), receipt(2, differs, ada, completion_tokens=150)]
    apply_receipts(source="engine-1", receipts=rows, now=NOON + timedelta(seconds=5))
    return ben, alone


def test_rolled_up_or_not_the_rates_are_the_same() -> None:
    make_day()
    live = everything()
    assert [(rate.total, rate.equal, rate.differ, rate.gateway_only) for rate in live["by day"]] == [(4, 1, 1, 2)]
    assert len(live["organizations"]) == 2
    assert rollups.roll_hours(now=NOW) > 0
    assert MatchHour.objects.filter(start=NOON).exists()
    assert not MatchHour.objects.filter(start__gte=NOW - timedelta(hours=3)).exists()
    assert everything() == live
    assert rollups.roll_hours(now=NOW) == 0


def test_the_rollups_are_what_is_read() -> None:
    make_day()
    rollups.roll_hours(now=NOW)
    MatchRollup.objects.filter(organization_id=rollups.ALL).update(total=77)
    assert [rate.total for rate in day_rates(read_period(START, END))] == [77]


def test_a_late_receipt_takes_its_hour_out_until_the_next_run() -> None:
    ben, alone = make_day()
    rollups.roll_hours(now=NOW)
    apply_receipts(source="engine-2", receipts=[receipt(1, alone, ben)], now=NOW)
    assert not MatchHour.objects.filter(start=NOON).exists()
    live = everything()
    assert [(rate.total, rate.equal, rate.gateway_only) for rate in live["by day"]] == [(4, 2, 1)]
    assert rollups.roll_hours(now=NOW) == 1
    assert everything() == live


def test_a_late_finish_takes_its_hour_out() -> None:
    price, ada = make_price(), make_account(credit_nano=USD)
    rollups.roll_hours(now=NOW)
    make_calls(ada, price)
    assert not MatchHour.objects.filter(start=NOON).exists()
    assert [rate.total for rate in day_rates(read_period(START, END))] == [1]


def test_parts_of_hours_at_the_edges_come_from_the_calls() -> None:
    make_day()
    rollups.roll_hours(now=NOW)
    middle = NOON + timedelta(milliseconds=1)
    halves = day_rates(read_period(START, middle)), day_rates(read_period(middle, END))
    assert sum(rate.total for half in halves for rate in half) == 4
