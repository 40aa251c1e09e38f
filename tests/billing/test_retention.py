"""Old months of usage records go as a whole, and only when nothing needs them row by row any more."""

import io
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from billing.errors import RecordsRetired, RetentionRefused
from billing.exports.services import request_export
from billing.invoices import annex
from billing.invoices.services import draft_invoice, finalize_invoice, void_invoice
from billing.ledger import audit
from billing.ledger.selectors import balance_nano
from billing.reconciliation.models import Receipt
from billing.reconciliation.periods import close_period
from billing.reconciliation.services import apply_receipts
from billing.rollups import services as rollups
from billing.rollups.selectors import summary
from billing.usage import partitions, retention
from billing.usage.models import RetiredMonth, UsageAdjustment, UsageRecord
from billing.usage.partitions import make_partitions, partition_sizes
from billing.usage.request_ids import floor_of
from tests.factories.billing import USD, make_account, make_calls, make_price, receipt

# The database of the tests has a partition of its own for every month after the present one.
JANUARY, FEBRUARY = datetime(2031, 1, 1, tzinfo=UTC), datetime(2031, 2, 1, tzinfo=UTC)
NAME = "billing_usage_record_2031_01"
LATER = datetime(2032, 3, 5, tzinfo=UTC)


@pytest.fixture
def january(transactional_db: None, settings) -> Iterator[None]:
    settings.USAGE_RETENTION_MONTHS = 12
    make_partitions(now=datetime(2030, 12, 15, tzinfo=UTC), months_ahead=1)
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usage_adjustment, billing_usage_record CASCADE")
        if NAME in partition_sizes():
            cursor.execute(f"ALTER TABLE billing_usage_record DETACH PARTITION {NAME}")
            cursor.execute(f"DROP TABLE {NAME}")


def id_at(moment: datetime, number: int) -> uuid.UUID:
    return uuid.UUID(int=floor_of(moment).int | (7 << 76) | (2 << 62) | (number << 4))


def call(account, price, count=3):
    """Calls of January, with their receipts; the last one's says more than its record."""
    ids = []
    for number in range(count):
        at = JANUARY + timedelta(days=number, minutes=5)
        ids += make_calls(account, price, request_id=id_at(at, number), started_at=at, finished_at=at)
    found = [receipt(number, request_id, account, started_at=at) for number, request_id in enumerate(ids, 1)]
    found[-1] = receipt(count, ids[-1], account, started_at=at, completion_tokens=500)
    apply_receipts(source="e", receipts=found, now=JANUARY + timedelta(days=20))
    return ids


def bill(account):
    invoice = draft_invoice(organization_id=account.organization_id, period="2031-01", now=FEBRUARY)
    return finalize_invoice(invoice, now=FEBRUARY)


def close():
    close_period(period="2031-01", actor_id=1, actor_name="Ada", now=FEBRUARY)


def blockers() -> list[str]:
    return [blocker for partition in retention.old_partitions(now=LATER) for blocker in partition.blockers]


def used(account):
    rows = summary(account.organization_id, JANUARY, FEBRUARY, "day")
    return [(row.requests, row.prompt_tokens, row.completion_tokens, row.cost_nano) for row in rows]


def test_a_month_that_is_closed_invoiced_and_summed_goes_and_its_sums_stay(january):
    account, price = make_account(credit_nano=USD), make_price()
    ids = call(account, price)
    invoice = bill(account)
    close()
    rollups.take_pending(now=LATER)
    before, balance = used(account), balance_nano(account.organization_id)
    cost_nano = sum(UsageRecord.objects.filter(request_id__in=ids).values_list("cost_nano", flat=True))
    adjusted_nano = UsageAdjustment.objects.get(record_id=ids[-1]).cost_nano
    assert min(cost_nano, adjusted_nano) > 0

    assert retention.retire_due(now=LATER) == 1

    assert not UsageRecord.objects.filter(request_id__in=ids).exists()
    assert NAME not in partition_sizes()
    assert not Receipt.objects.filter(request_id__in=ids).exists()
    kept = RetiredMonth.objects.get()
    assert (kept.period, kept.records, kept.cost_nano, kept.adjustments, kept.adjusted_nano, kept.actor_name) == (
        "2031-01", 3, cost_nano, 1, adjusted_nano, ""
    )  # fmt: skip
    assert used(account) == before
    assert balance_nano(account.organization_id) == balance
    invoice.refresh_from_db()
    assert invoice.usage_nano == cost_nano + adjusted_nano
    assert audit.compare() == []
    assert retention.retire_due(now=LATER) == 0


def test_what_needs_single_records_is_refused_once_they_are_gone(january):
    account = make_account(credit_nano=USD)
    call(account, make_price())
    invoice = bill(account)
    close()
    rollups.take_pending(now=LATER)
    assert retention.retire_due(now=LATER) == 1
    with pytest.raises(RecordsRetired, match="2031-01"):
        annex.render(invoice)
    with pytest.raises(RecordsRetired):
        void_invoice(invoice, reason="wrong", now=LATER)
    with pytest.raises(RecordsRetired):
        request_export(
            organization_id=account.organization_id, kind="usage", file_format="csv", period="2031-01", actor_id=None
        )
    with pytest.raises(RecordsRetired):
        rollups.rebuild_days(JANUARY, JANUARY + timedelta(days=1), now=LATER)
    make_calls(account, make_price(), started_at=FEBRUARY)
    out = io.StringIO()
    call_command("rebuild_rollups", "--start", "2031-01-01", "--end", "2031-01-02", stdout=out)
    assert "the records are gone" in out.getvalue()
    kept = RetiredMonth.objects.get()
    kept.records = 0
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        kept.save()


def test_each_reason_to_keep_a_month_is_named(january):
    account = make_account(credit_nano=USD)
    call(account, make_price())
    assert blockers() == [
        "2031-01 is not closed in reconciliation",
        "4 records or corrections of 2031-01 are on no invoice",
        "4 ended calls are not in the rollups yet",
    ]
    rollups.take_pending(now=LATER)
    bill(account)
    assert blockers() == ["2031-01 is not closed in reconciliation"]
    assert retention.retire_due(now=LATER) == 0
    (partition,) = retention.old_partitions(now=LATER)
    with pytest.raises(RetentionRefused, match="not closed"):
        retention.retire(partition, actor_name="Ada", now=LATER)
    assert UsageRecord.objects.count() == 3
    close()
    assert blockers() == []
    # One month short of its time it is not looked at, and without a retention nothing is.
    assert retention.old_partitions(now=datetime(2032, 1, 31, tzinfo=UTC)) == []
    assert retention.old_partitions(now=LATER, months=0) == []


def test_a_month_whose_rollups_differ_stays(january, caplog):
    account = make_account(credit_nano=USD)
    call(account, make_price())
    bill(account)
    close()
    rollups.take_pending(now=LATER)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE billing_usage_rollup SET requests = requests + 1 WHERE grain_s = 86400")
    assert retention.retire_due(now=LATER) == 0
    assert "usage_not_retired" in caplog.text
    assert UsageRecord.objects.count() == 3


def test_an_operator_sees_what_would_go_before_it_goes(january):
    account = make_account(credit_nano=USD)
    call(account, make_price())
    bill(account)
    rollups.take_pending(now=LATER)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.utils.timezone.now", lambda: LATER)
        call_command("retire_usage", stdout=out)
        assert "3 records" in out.getvalue()
        assert "stays: 2031-01 is not closed" in out.getvalue()
        call_command("retire_usage", "--yes", stdout=out)
        assert UsageRecord.objects.count() == 3
        close()
        call_command("retire_usage", "--yes", stdout=out)
        assert not UsageRecord.objects.exists()
        assert RetiredMonth.objects.get().actor_name == "manage.py retire_usage"
        with pytest.raises(CommandError, match="kept for ever"):
            call_command("retire_usage", "--months", "0")


def test_a_table_that_somebody_holds_is_left_for_the_next_hour(january, caplog, monkeypatch):
    account = make_account(credit_nano=USD)
    call(account, make_price())
    bill(account)
    close()
    rollups.take_pending(now=LATER)
    monkeypatch.setattr(partitions, "LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(retention, "LOCK_TIMEOUT", "50ms")
    reader = connection.copy()
    try:
        reader.set_autocommit(False)
        with reader.cursor() as cursor:
            cursor.execute("SELECT 1 FROM billing_usage_record LIMIT 1")
            assert make_partitions(now=datetime(2031, 2, 1, tzinfo=UTC), months_ahead=2) == []
            assert retention.retire_due(now=LATER) == 0
    finally:
        reader.close()
    assert caplog.text.count("held by another") == 2
    assert retention.retire_due(now=LATER) == 1
