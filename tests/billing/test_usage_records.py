"""A request is recorded once, finished once, and billed by the rule."""

import random
import uuid
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction

from billing.errors import RecordRefused
from billing.ledger import audit
from billing.ledger.models import LedgerTransaction
from billing.ledger.selectors import available_nano, balance, balance_nano, held_nano
from billing.usage import selectors
from billing.usage.models import UsageRecord
from billing.usage.selectors import UsageFilters
from billing.usage.services import finish_records, open_records
from tests.billing.concurrency import at_once
from tests.factories.billing import NOON, USD, ending, make_account, make_calls, make_price, opening

pytestmark = pytest.mark.django_db


@pytest.fixture
def price():
    return make_price()


@pytest.fixture
def ada():
    return make_account(credit_nano=5 * USD)


class TestOpening:
    def test_it_holds_credit_until_the_finish(self, ada, price):
        rows = [opening(ada, price, hold_nano=2_000_000) for _ in range(3)]
        open_records(rows)
        assert held_nano(ada.organization_id) == 6_000_000
        assert available_nano(ada.organization_id) == 5 * USD - 6_000_000
        finish_records([ending(row.request_id) for row in rows])
        assert held_nano(ada.organization_id) == 0
        assert available_nano(ada.organization_id) == balance_nano(ada.organization_id) == 5 * USD - 999_000

    def test_a_repeat_changes_nothing(self, ada, price):
        rows = [opening(ada, price), opening(ada, price)]
        open_records(rows)
        open_records([rows[0], opening(ada, price), rows[1]])
        assert UsageRecord.objects.count() == 3
        finish_records([ending(rows[0].request_id)])
        open_records(rows)
        assert UsageRecord.objects.get(request_id=rows[0].request_id).status == "completed"

    def test_a_request_id_of_another_call_is_refused(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        ben = make_account()
        with pytest.raises(RecordRefused, match="belongs to another call") as refused:
            open_records([opening(ben, price, request_id=row.request_id)])
        assert refused.value.request_id == row.request_id

    def test_a_row_that_does_not_fit_is_named_and_its_batch_is_not_written(self, ada, price):
        yen = make_price("yen", currency="JPY")
        bad = opening(ada, yen)
        with pytest.raises(RecordRefused, match="no billing account in the currency") as refused:
            open_records([opening(ada, price), bad])
        assert refused.value.request_id == bad.request_id
        assert not UsageRecord.objects.exists()

    @pytest.mark.parametrize(
        "odd",
        [{"hold_nano": -1}, {"end_user": "x" * 257}, {"end_user": "a\x00b"}, {"started_at": NOON.replace(tzinfo=None)}],
    )
    def test_odd_values_are_refused_before_they_join_a_batch(self, ada, price, odd):
        with pytest.raises(ValueError, match=r"hold_nano|end_user|started_at"):
            opening(ada, price, **odd)

    def test_an_empty_batch_is_nothing(self):
        open_records([])
        assert finish_records([]) == {}


class TestFinishing:
    @pytest.mark.parametrize(("status", "cost_nano"), [("completed", 333_000), ("cancelled", 333_000), ("failed", 0)])
    def test_what_was_served_is_billed_and_a_failure_is_free(self, ada, price, status, cost_nano):
        row = opening(ada, price)
        open_records([row])
        assert finish_records([ending(row.request_id, status=status)]) == {row.request_id: cost_nano}
        record = UsageRecord.objects.get(request_id=row.request_id)
        assert (record.status, record.prompt_tokens, record.completion_tokens) == (status, 1000, 100)
        assert record.cost_nano == cost_nano
        assert balance_nano(ada.organization_id) == 5 * USD - cost_nano

    def test_a_repeat_bills_nothing_and_the_first_ending_counts(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        first = finish_records([ending(row.request_id), ending(row.request_id, completion_tokens=5)])
        again = finish_records([ending(row.request_id, completion_tokens=10**6)])
        assert first == again == {row.request_id: 333_000}
        assert balance_nano(ada.organization_id) == 5 * USD - 333_000
        assert LedgerTransaction.objects.filter(kind="usage").count() == 1

    def test_a_request_that_was_never_opened_is_not_answered(self, ada, price, caplog):
        row = opening(ada, price)
        open_records([row])
        unknown = uuid.uuid4()
        assert finish_records([ending(row.request_id), ending(unknown)]) == {row.request_id: 333_000}
        assert f"usage_record_missing request_id={unknown}" in caplog.text

    def test_a_failed_write_leaves_no_mark_and_a_resend_counts_once(self, ada, price):
        row = opening(ada, price)
        open_records([row])

        def finish_and_fail():
            with transaction.atomic():
                finish_records([ending(row.request_id)])
                raise RuntimeError("the storage failed before the commit")

        with pytest.raises(RuntimeError):
            finish_and_fail()
        assert UsageRecord.objects.get(request_id=row.request_id).status == "started"
        assert balance_nano(ada.organization_id) == 5 * USD
        assert finish_records([ending(row.request_id)]) == {row.request_id: 333_000}
        assert balance_nano(ada.organization_id) == 5 * USD - 333_000

    @pytest.mark.parametrize(
        "odd",
        [
            {"status": "started"},
            {"status": "done"},
            {"cached_tokens": 1001},
            {"reasoning_tokens": 101},
            {"cached_tokens": -1},
        ],
    )
    def test_odd_counts_are_refused_before_they_join_a_batch(self, odd):
        with pytest.raises(ValueError, match=r"status|larger than its whole"):
            ending(uuid.uuid4(), **odd)

    def test_a_batch_takes_a_fixed_number_of_statements(self, ada, price, django_assert_num_queries):
        def batch(size):
            rows = [opening(ada, price) for _ in range(size)]
            with django_assert_num_queries(1 + 2):
                open_records(rows)
            # Locking, finishing, the wallet's three reads and the posting; two more are the savepoint.
            with django_assert_num_queries(6 + 2):
                finish_records([ending(row.request_id) for row in rows])

        batch(1)
        batch(40)


class TestDatabaseGuards:
    @pytest.mark.parametrize(
        "change",
        [
            {"completion_tokens": 1},
            {"output_cost_nano": 1},
            {"status": "failed"},
            {"finished_at": NOON},
            {"model": "x"},
        ],
    )
    def test_a_final_record_stays(self, ada, price, change):
        [request_id] = make_calls(ada, price)
        with pytest.raises(DatabaseError, match="is final"), transaction.atomic():
            UsageRecord.objects.filter(request_id=request_id).update(**change)

    @pytest.mark.parametrize("change", [{"hold_nano": 0}, {"started_at": NOON + timedelta(1)}, {"project_id": 2}])
    def test_an_opening_stays(self, ada, price, change):
        row = opening(ada, price)
        open_records([row])
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            UsageRecord.objects.filter(request_id=row.request_id).update(**change)

    def test_no_record_is_deleted(self, ada, price):
        [request_id] = make_calls(ada, price)
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM billing_usage_record WHERE request_id = %s", [request_id])

    def test_a_failed_request_cannot_cost(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        with pytest.raises(DatabaseError, match="free_unless_served"), transaction.atomic():
            UsageRecord.objects.filter(request_id=row.request_id).update(
                status="failed", finished_at=NOON, output_cost_nano=1
            )


class TestPages:
    def test_a_keyset_walk_sees_each_record_once(self, ada, price, django_assert_num_queries):
        moments = [NOON + timedelta(seconds=second) for second in range(5)]
        ids = [make_calls(ada, price, started_at=random.choice(moments))[0] for _ in range(23)]
        make_calls(make_account(), price)
        seen, after = [], None
        while True:
            with django_assert_num_queries(1):
                page = selectors.usage_page(ada.organization_id, after=after, limit=5)
            seen += page.rows
            if page.next is None:
                break
            after = page.next
        assert sorted(row.request_id for row in seen) == sorted(ids)
        assert [row.started_at for row in seen] == sorted((row.started_at for row in seen), reverse=True)

    def test_filters_narrow_the_page(self, ada, price):
        other = make_price("other")
        make_calls(ada, price, 2, api_key_id=7, end_user="eve")
        make_calls(ada, other, 3, status="failed")
        make_calls(ada, other, 1, started_at=NOON + timedelta(days=1))

        def count(**filters):
            return len(selectors.usage_page(ada.organization_id, filters=UsageFilters(**filters)).rows)

        assert count() == 6
        assert count(api_key_id=7) == count(end_user="eve") == count(model="m") == 2
        assert count(status="failed") == 3
        assert count(start=NOON, end=NOON + timedelta(days=1)) == 5
        assert count(project_id=99) == 0

    @pytest.mark.parametrize("marker", ["", "x", "!!!", "MTIz", "MjAyNi0wMS0wMXx4"])
    def test_a_marker_that_is_not_ours_is_refused(self, ada, marker):
        with pytest.raises(ValueError, match="page marker"):
            selectors.usage_page(ada.organization_id, after=marker)

    def test_a_record_of_another_organization_is_not_there(self, ada, price):
        [request_id] = make_calls(ada, price)
        assert selectors.record(ada.organization_id, request_id).cost_nano == 333_000
        assert selectors.record(make_account().organization_id, request_id) is None


class TestSummary:
    def test_sums_by_group_and_by_the_day_of_a_zone(self, ada, price, django_assert_num_queries):
        late = NOON.replace(hour=23)
        make_calls(ada, price, 2)
        make_calls(ada, price, 1, started_at=late, api_key_id=9)
        make_calls(ada, price, 1, started_at=NOON + timedelta(days=40))
        open_records([opening(ada, price)])
        start, end = NOON - timedelta(days=1), NOON + timedelta(days=2)
        with django_assert_num_queries(1):
            [total] = selectors.summary(ada.organization_id, start, end)
        assert (total.requests, total.prompt_tokens, total.cost_nano) == (3, 3000, 999_000)

        def keys(group, **options):
            rows = selectors.summary(ada.organization_id, start, end, group, **options)
            return {row.key: row.requests for row in rows}

        assert keys("day") == {"2026-05-15": 3}
        assert keys("day", time_zone="Asia/Tokyo") == {"2026-05-15": 2, "2026-05-16": 1}
        assert keys("hour") == {"2026-05-15T12:00": 2, "2026-05-15T23:00": 1}
        assert keys("api_key") == {"1": 2, "9": 1}
        assert keys("month") == {"2026-05": 3}
        assert selectors.spent_nano(ada.organization_id, start, end) == 999_000

    def test_an_unknown_group_is_named(self, ada):
        with pytest.raises(ValueError, match="group_by is 'x'; it must be one of total, model"):
            selectors.summary(ada.organization_id, NOON, NOON, "x")


@pytest.mark.django_db(transaction=True)
class TestTwoGateways:
    def test_overlapping_batches_neither_deadlock_nor_bill_twice(self):
        price = make_price()
        accounts = [make_account(credit_nano=USD) for _ in range(4)]
        rows = [opening(random.choice(accounts), price) for _ in range(120)]
        open_records(rows)
        batches = []
        for _ in range(4):
            random.shuffle(rows)
            batches.append([ending(row.request_id) for row in rows[:80]])
        results = at_once(*((lambda batch=batch: finish_records(batch)) for batch in batches))
        finished = {request_id for batch in batches for request_id in (row.request_id for row in batch)}
        for result in results:
            assert not isinstance(result, Exception), result
            assert set(result.values()) == {333_000}
        balances = [balance(account.organization_id) for account in accounts]
        assert sum(USD - state.balance_nano for state in balances) == len(finished) * 333_000
        assert sum(state.held_nano for state in balances) == (120 - len(finished)) * 1_000_000
        assert audit.compare() == []

    def test_one_record_finished_by_all_at_once_is_billed_once(self):
        price, ada = make_price(), make_account(credit_nano=USD)
        row = opening(ada, price)
        open_records([row])
        results = at_once(*[lambda: finish_records([ending(row.request_id)])] * 5)
        assert results == [{row.request_id: 333_000}] * 5
        assert balance_nano(ada.organization_id) == USD - 333_000
