"""Chart, overview, list, export, invoice and ledger have one sum over a month border, whatever is rolled up."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.db.models import Sum
from django.test import Client
from django.urls import reverse

from billing.accounts.models import BillingAccount
from billing.exports.services import make, path_of, request_export
from billing.invoices.services import draft_invoice, finalize_invoice
from billing.ledger.models import LedgerEntry
from billing.rollups.services import take_pending
from billing.usage import selectors
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.models import UsageAdjustment, UsageRecord
from billing.usage.selectors import UsageFilters
from billing.usage.services import finish_records, open_records
from tests.factories.billing import ending, make_price, opening
from tests.factories.portal import Cast

Browser = Callable[..., Client]
# Its months begin at 18:15 UTC: in the middle of an hour of the rollups.
ZONE = ZoneInfo("Asia/Kathmandu")
BORDER = datetime(2026, 6, 1, tzinfo=ZONE)
NOW = datetime(2026, 6, 3, 9, 20, tzinfo=UTC)
CALLS = 120


@pytest.fixture
def calls(cast: Cast, settings: Any, tmp_path: Path) -> BillingAccount:
    """Calls in the days around the border, some to the second on either side of it, and a correction of one in May."""
    settings.VAR_DIR = tmp_path
    account = BillingAccount.objects.get(organization=cast.organization)
    account.time_zone, account.credit_limit_nano = ZONE.key, 10**12
    account.save()
    chance = random.Random(1)
    prices = [make_price(model, at=BORDER - timedelta(days=90)) for model in ("m", "n")]
    ages = [chance.uniform(-200_000, 120_000) for _ in range(CALLS - 4)]
    opened, ended = [], []
    for seconds in [*ages, -1, 0, -0.001, 1]:
        status = chance.choice(["completed", "completed", "cancelled", "failed"])
        started_at = BORDER + timedelta(seconds=seconds)
        row = opening(account, chance.choice(prices), started_at=started_at, api_key_id=chance.choice([1, 2]))
        prompt = chance.randrange(1, 9000)
        counts = {"prompt_tokens": prompt, "cached_tokens": prompt // 3}
        counts["completion_tokens"] = 0 if status == "failed" else chance.randrange(1, 700)
        opened.append(row)
        ended.append(ending(row.request_id, status=status, finished_at=started_at + timedelta(seconds=1), **counts))
    open_records(opened)
    finish_records(ended)
    return account


def correct_one(account: BillingAccount) -> None:
    record = UsageRecord.objects.filter(status="completed", started_at__lt=BORDER).order_by("request_id")[0]
    counts = Counts(record.prompt_tokens, record.cached_tokens, record.completion_tokens + 77, 0)
    adjust_record(record=record, status="completed", counts=counts, key="k", reason="r", now=NOW)


def chart(browser: Client, cast: Cast, metric: str) -> tuple[int, int]:
    """The chart's bars of May and of June, added up."""
    address = reverse("portal:usage_chart", args=[cast.organization.slug])
    data = browser.get(address, {"days": 90, "metric": metric}).json()
    scale = 10**9 if metric == "spend" else 1
    sums = {"2026-05": 0, "2026-06": 0}
    for series in data["series"]:
        for day, value in zip(data["keys"], series["values"], strict=True):
            if day[:7] in sums:
                sums[day[:7]] += round(value * scale)
    return sums["2026-05"], sums["2026-06"]


def listed(account: BillingAccount, start: datetime | None, end: datetime | None) -> tuple[int, int]:
    """Requests and cost over all pages of the list."""
    filters, after, rows, pages = UsageFilters(start=start, end=end), None, [], 0
    while True:
        page = selectors.usage_page(account.organization_id, filters=filters, after=after, limit=3)
        rows += page.rows
        pages += 1
        if page.next is None:
            break
        after = page.next
    if start is None and end is None:
        assert pages >= 40
    corrections = UsageAdjustment.objects.filter(record__in=rows).aggregate(all=Sum("cost_nano"))["all"] or 0
    return len(rows), sum(row.cost_nano for row in rows) + corrections


def exported(account: BillingAccount, period: str) -> tuple[int, int]:
    asked = request_export(
        organization_id=account.organization_id, kind="usage", file_format="csv", period=period, actor_id=None
    )
    export = make(asked.id)
    assert export is not None
    with path_of(export).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return sum(row["kind"] == "usage" for row in rows), int(sum(Decimal(row["cost"]) for row in rows) * 10**9)


@pytest.mark.parametrize("rolled", ["nothing", "all but the correction", "everything"])
def test_every_way_to_add_up_gives_the_same(cast: Cast, calls: BillingAccount, signed_in: Browser, rolled: str) -> None:
    if rolled != "nothing":
        take_pending(now=NOW)
    correct_one(calls)
    if rolled == "everything":
        take_pending(now=NOW)
    browser = signed_in(cast.ada)
    browser.cookies["time_zone"] = ZONE.key
    with time_machine.travel(NOW, tick=False):
        requests, spend = chart(browser, cast, "requests"), chart(browser, cast, "spend")
        page = browser.get(reverse("portal:usage", args=[cast.organization.slug]), {"days": 90, "group": "api_key"})
        total = page.context["total"]
        files = exported(calls, "2026-05"), exported(calls, "2026-06")
        invoice = finalize_invoice(draft_invoice(organization_id=calls.organization_id, period="2026-05"))
    may, june = listed(calls, None, BORDER), listed(calls, BORDER, None)
    revenue = LedgerEntry.objects.filter(account__kind="revenue", account__organization=None)
    for month, expected in enumerate((may, june)):
        assert (requests[month], spend[month]) == expected
        assert files[month] == expected
    assert invoice.usage_nano == may[1]
    assert (total.requests, total.cost_nano) == listed(calls, None, None) == (CALLS, may[1] + june[1])
    assert revenue.aggregate(all=Sum("amount_nano"))["all"] == may[1] + june[1]
    by_month = selectors.summary(calls.organization_id, BORDER - timedelta(days=9), NOW, "month", time_zone=ZONE.key)
    assert [(row.requests, row.cost_nano) for row in by_month] == [may, june]
