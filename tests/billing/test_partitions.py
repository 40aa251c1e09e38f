"""Records lie in the month of their id; ids tell time, operation and attempt."""

import uuid
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from billing.usage.models import UsageRecord
from billing.usage.partitions import make_partitions, month_starts, partition_sizes
from billing.usage.request_ids import attempt_of, floor_of, moment_of, new_request_id, next_attempt, operation_of
from billing.usage.services import finish_records, open_records
from tests.factories.billing import ending, make_account, make_price, opening

# Hypothesis wants them without a zone.
CENTURY = (datetime(2000, 1, 1), datetime(2100, 1, 1))  # noqa: DTZ001


def id_at(moment: datetime) -> uuid.UUID:
    return uuid.UUID(int=floor_of(moment).int | (7 << 76) | (2 << 62) | 0xABC0)


def partition_of(request_id: uuid.UUID) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM billing_usage_record WHERE request_id = %s", [request_id])
        return cursor.fetchone()[0]


def test_an_id_tells_its_operation_and_attempt():
    first = new_request_id()
    assert first.version == 7
    assert (attempt_of(first), operation_of(first)) == (1, first)
    second = next_attempt(first)
    assert (attempt_of(second), operation_of(second)) == (2, first)
    assert second.version == 7
    last = uuid.UUID(int=first.int + 15)
    with pytest.raises(ValueError, match="attempt 16"):
        next_attempt(last)


def test_two_operations_never_share_an_attempt():
    assert len({operation_of(new_request_id()) for _ in range(5000)}) == 5000


@given(st.datetimes(*CENTURY, timezones=st.just(UTC)))
def test_ids_made_from_a_moment_on_are_not_below_its_floor(moment):
    assert floor_of(moment) <= id_at(moment)
    assert moment_of(floor_of(moment)) == moment_of(id_at(moment)) <= moment
    assert id_at(moment - timedelta(milliseconds=2)) < floor_of(moment)


@given(st.datetimes(*CENTURY, timezones=st.just(UTC)), st.integers(0, 40))
def test_months_follow_each_other(now, count):
    starts = month_starts(now, count)
    assert len(starts) == count + 1
    assert starts[0] <= now < starts[0] + timedelta(days=31)
    assert all(timedelta(days=28) <= b - a <= timedelta(days=31) for a, b in pairwise(starts))


@pytest.mark.django_db
class TestPartitions:
    def test_the_database_and_python_agree_on_the_floor(self):
        moment = datetime(2026, 12, 1, tzinfo=UTC)
        with connection.cursor() as cursor:
            cursor.execute("SELECT billing_request_id_floor(%s)", [moment])
            assert cursor.fetchone()[0] == floor_of(moment)

    def test_coming_months_are_made_once_and_take_their_records(self):
        now = datetime(2031, 5, 20, tzinfo=UTC)
        assert make_partitions(now=now, months_ahead=2) == [
            "billing_usage_record_2031_06",
            "billing_usage_record_2031_07",
        ]
        assert make_partitions(now=now, months_ahead=2) == []
        account, price = make_account(credit_nano=10**9), make_price()
        june, odd = id_at(datetime(2031, 6, 30, 23, 59, tzinfo=UTC)), uuid.UUID(int=uuid.uuid4().int | 1 << 127)
        open_records([opening(account, price, request_id=request_id) for request_id in (june, odd)])
        assert partition_of(june) == "billing_usage_record_2031_06"
        assert partition_of(odd) == "billing_usage_record_rest"
        assert finish_records([ending(june), ending(odd)]) == {june: 333_000, odd: 333_000}
        assert set(partition_sizes()) >= {"billing_usage_record_rest", "billing_usage_record_2031_06"}

    def test_a_month_with_rows_in_the_rest_stays_there_and_stops_no_other(self, caplog):
        account, price = make_account(credit_nano=10**9), make_price()
        early = id_at(datetime(2031, 6, 2, tzinfo=UTC))
        open_records([opening(account, price, request_id=early)])
        made = make_partitions(now=datetime(2031, 5, 20, tzinfo=UTC), months_ahead=2)
        assert made == ["billing_usage_record_2031_07"]
        assert "partition_not_made name=billing_usage_record_2031_06" in caplog.text
        assert finish_records([ending(early)]) == {early: 333_000}

    def test_an_id_is_unique_over_all_months(self):
        account, price = make_account(credit_nano=10**9), make_price()
        request_id = new_request_id()
        open_records([opening(account, price, request_id=request_id)])
        row = UsageRecord.objects.get(request_id=request_id)
        row.started_at += timedelta(days=90)
        with pytest.raises(IntegrityError), transaction.atomic():
            row.save(force_insert=True)

    def test_a_look_up_by_id_reads_one_month(self):
        make_partitions(now=datetime(2031, 5, 20, tzinfo=UTC), months_ahead=6)
        wanted = id_at(datetime(2031, 8, 2, tzinfo=UTC))
        with connection.cursor() as cursor:
            cursor.execute(
                "EXPLAIN SELECT * FROM billing_usage_record WHERE request_id = ANY(%s::uuid[]) AND status = 'started'",
                [[wanted]],
            )
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "billing_usage_record_2031_08" in plan
        assert "billing_usage_record_2031_07" not in plan

    def test_the_attempt_is_recorded(self):
        account, price = make_account(credit_nano=10**9), make_price()
        first = new_request_id()
        rows = [
            opening(account, price, request_id=request_id, attempt=attempt_of(request_id))
            for request_id in (first, next_attempt(first))
        ]
        open_records(rows)
        assert list(UsageRecord.objects.order_by("request_id").values_list("attempt", flat=True)) == [1, 2]
