"""Receipts and records are matched by request id; what differs is repaired by new rows, and the rates say so."""

import uuid
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import DatabaseError, transaction

from billing.errors import JournalRestarted
from billing.ledger import audit
from billing.ledger.selectors import balance, balance_nano, held_nano
from billing.reconciliation.models import GatewayEnd, Receipt
from billing.reconciliation.selectors import match_rates, mismatches, read_period
from billing.reconciliation.services import apply_receipts, close_stale, cursor, note_gateway_end
from billing.usage import selectors
from billing.usage.models import UsageAdjustment, UsageRecord
from billing.usage.services import finish_records, open_records
from tests.billing.concurrency import at_once
from tests.factories.billing import NOON, USD, ending, make_account, make_calls, make_price, opening, receipt

pytestmark = pytest.mark.django_db

DAY = (NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1))
SOON = NOON + timedelta(seconds=5)
LATER = SOON + timedelta(seconds=60)


def apply(*receipts, now=SOON, source="engine-1"):
    return apply_receipts(source=source, receipts=receipts, now=now)


@pytest.fixture
def price():
    return make_price()


@pytest.fixture
def ada():
    return make_account(credit_nano=USD)


def rate_of(account):
    organization_id = account.organization_id if account else None
    [found] = [row for row in match_rates(*DAY) if row.organization_id == organization_id]
    return found


class TestClasses:
    def test_equal(self, ada, price):
        [request_id] = make_calls(ada, price)
        summary = apply(receipt(1, request_id, ada))
        assert (summary.stored, summary.equal, summary.pending) == (1, 1, 0)
        rate = rate_of(ada)
        assert (rate.total, rate.raw_percent, rate.repaired_percent) == (1, Decimal(100), Decimal(100))

    def test_a_differing_record_is_corrected_by_new_rows(self, ada, price):
        more, less = make_calls(ada, price, 2)
        summary = apply(receipt(1, more, ada, completion_tokens=150), receipt(2, less, ada, cached_tokens=1000))
        assert summary.differ == 2
        assert UsageRecord.objects.filter(completion_tokens=100, cached_tokens=900, cost_nano=333_000).count() == 2
        changes = UsageAdjustment.objects.order_by("id").values_list("completion_tokens", "cached_tokens", "cost_nano")
        assert list(changes) == [(50, 0, 50 * 2030), (0, 100, -40_000 + 10_000)]
        assert selectors.record(ada.organization_id, more).cost_nano == 333_000 + 50 * 2030
        assert balance_nano(ada.organization_id) == USD - 666_000 - 50 * 2030 + 30_000
        assert audit.compare() == []
        rate = rate_of(ada)
        assert (rate.differ, rate.raw_percent, rate.repaired_percent) == (2, 0, 100)

    def test_an_unfinished_record_waits_for_its_gateway_and_is_finished_from_the_receipt(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        told = receipt(1, row.request_id, ada, status="cancelled", completion_tokens=7)
        assert apply(told).pending == 1
        assert rate_of(ada).pending == 1
        assert held_nano(ada.organization_id) == row.hold_nano
        assert apply(now=LATER - timedelta(seconds=1)).pending == 1
        assert apply(now=LATER).unfinished == 1
        record = UsageRecord.objects.get(request_id=row.request_id)
        assert (record.status, record.completion_tokens, record.cost_nano) == ("cancelled", 7, 130_000 + 7 * 2030)
        assert held_nano(ada.organization_id) == 0
        # The gateway comes back late: the record stays, and it learns the cost.
        assert finish_records([ending(row.request_id)]) == {row.request_id: record.cost_nano}

    def test_a_gateway_that_has_ended_is_not_waited_for(self, ada, price):
        gone, alive = opening(ada, price, gateway_id="gone"), opening(ada, price, gateway_id="alive")
        open_records([gone, alive])
        assert apply(receipt(1, gone.request_id, ada), receipt(2, alive.request_id, ada)).pending == 2
        note_gateway_end("gone", now=SOON)
        note_gateway_end("gone", now=LATER)
        summary = apply(now=SOON)
        assert (summary.unfinished, summary.pending) == (1, 1)
        assert held_nano(ada.organization_id) == alive.hold_nano
        assert GatewayEnd.objects.get().ended_at == SOON

    def test_raw_is_of_calls_with_two_accounts_and_strict_of_all(self, ada, price):
        two = make_calls(ada, price, 3)
        row = opening(ada, price)
        open_records([row])
        apply(*(receipt(number, request_id, ada) for number, request_id in enumerate(two[:2], start=1)))
        apply(receipt(3, two[2], ada, completion_tokens=1), receipt(4, row.request_id, ada))
        apply(now=LATER)
        rate = rate_of(ada)
        assert (rate.equal, rate.differ, rate.unfinished) == (2, 1, 1)
        assert (round(rate.raw_percent, 2), rate.strict_percent) == (Decimal("66.67"), 50)

    @pytest.mark.parametrize(("code", "match_class"), [("lost", "unfinished"), ("device_fault", "differ")])
    def test_a_call_that_was_served_and_failed_at_the_engine(self, ada, price, code, match_class):
        """The gateway's counts stand: they are what the client got. But that is no agreement."""
        [request_id] = make_calls(ada, price)
        apply(receipt(1, request_id, ada, status="failed", completion_tokens=0, error_code=code))
        assert getattr(rate_of(ada), match_class) == 1
        assert not UsageAdjustment.objects.exists()
        assert balance_nano(ada.organization_id) == USD - 333_000

    def test_a_receipt_that_overtakes_the_gateway_is_no_mismatch(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        assert apply(receipt(1, row.request_id, ada)).pending == 1
        finish_records([ending(row.request_id)])
        assert apply(now=SOON).equal == 1

    def test_engine_only_work_gets_a_free_record(self, ada, price):
        known, stranger = uuid.uuid4(), uuid.uuid4()
        assert apply(receipt(1, known, ada), receipt(2, stranger, tenant="someone")).pending == 2
        assert apply(now=LATER).engine_only == 2
        record = UsageRecord.objects.get(request_id=known)
        assert (record.status, record.error_code, record.cost_nano) == ("failed", "unrecorded", 0)
        assert (record.prompt_tokens, record.completion_tokens) == (1000, 100)
        assert balance_nano(ada.organization_id) == USD
        assert rate_of(ada).repaired_percent == 100
        assert (rate_of(None).unsettled, rate_of(None).repaired_percent) == (1, 0)
        assert "no organization of ours" in Receipt.objects.get(request_id=stranger).note

    def test_gateway_only_is_told_with_its_age(self, ada, price):
        [request_id] = make_calls(ada, price)
        make_calls(ada, price, expects_receipt=False)
        make_calls(ada, price, status="failed")
        make_calls(ada, price, status="cancelled", prompt_tokens=0, cached_tokens=0, completion_tokens=0)
        rate = rate_of(ada)
        assert (rate.total, rate.gateway_only, rate.repaired_percent) == (1, 1, 0)
        [found] = mismatches(read_period(*DAY), now=NOON + timedelta(hours=3))
        assert (found.request_id, found.match_class, found.age) == (request_id, "gateway_only", timedelta(hours=3))

    def test_a_failed_call_stays_free_whatever_the_engine_counted(self, ada, price):
        [request_id] = make_calls(ada, price, status="failed", completion_tokens=3)
        apply(receipt(1, request_id, ada, completion_tokens=100))
        [adjustment] = UsageAdjustment.objects.all()
        assert (adjustment.completion_tokens, adjustment.cost_nano) == (97, 0)
        assert balance_nano(ada.organization_id) == USD

    def test_a_call_that_lost_its_engine_is_unfinished_and_corrected(self, ada, price):
        [request_id] = make_calls(ada, price, status="failed", completion_tokens=3, is_estimated=True)
        assert apply(receipt(1, request_id, ada, completion_tokens=100)).unfinished == 1
        assert (rate_of(ada).unfinished, rate_of(ada).differ) == (1, 0)
        assert (rate_of(ada).raw_percent, rate_of(ada).strict_percent) == (100, 0)
        assert UsageAdjustment.objects.get().completion_tokens == 97

    def test_a_failed_attempt_before_the_one_that_served_corrects_nothing(self, ada, price):
        [request_id] = make_calls(ada, price)
        failed = receipt(1, request_id, ada, status="failed", completion_tokens=0)
        apply(failed, source="engine-1")
        apply(receipt(1, request_id, ada), source="engine-2")
        assert not UsageAdjustment.objects.exists()
        assert (rate_of(ada).total, rate_of(ada).equal) == (1, 1)

    def test_an_unfinished_record_with_a_failed_attempt_is_finished_by_the_one_that_served(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        apply(receipt(1, row.request_id, ada, status="failed", completion_tokens=0), receipt(2, row.request_id, ada))
        assert apply(now=LATER).unfinished == 2
        assert UsageRecord.objects.get(request_id=row.request_id).cost_nano == 333_000


class TestRepeats:
    def test_a_repeat_stores_and_repairs_nothing(self, ada, price):
        [request_id] = make_calls(ada, price)
        told = [receipt(1, request_id, ada, completion_tokens=150), receipt(2, uuid.uuid4(), ada)]
        apply(*told, now=SOON)
        first = apply(*told, now=LATER)
        again = apply(*told, now=LATER)
        assert (first.stored, first.engine_only) == (0, 1)
        assert (again.stored, again.differ, again.engine_only) == (0, 0, 0)
        assert UsageAdjustment.objects.count() == 1
        assert cursor("engine-1") == 2
        assert cursor("never heard of") == 0

    def test_a_journal_that_starts_again_under_its_name_is_refused(self, ada):
        apply(receipt(1, uuid.uuid4(), ada))
        with pytest.raises(JournalRestarted, match="name of its own"):
            apply(receipt(1, uuid.uuid4(), ada))
        assert apply(receipt(1, uuid.uuid4(), ada), source="engine-1b").stored == 1

    def test_what_an_engine_said_stays_as_it_came(self, ada):
        apply(receipt(1, uuid.uuid4(), ada))
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            Receipt.objects.update(completion_tokens=1)

    @pytest.mark.parametrize("odd", [{"status": "started"}, {"cached_tokens": 1001}, {"reasoning_tokens": 101}])
    def test_odd_receipts_are_refused_by_their_number(self, odd):
        with pytest.raises(ValueError, match="receipt 17"):
            receipt(17, uuid.uuid4(), **odd)


class TestStale:
    def test_what_an_engine_that_is_gone_said_still_finishes_its_records(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        apply(receipt(1, row.request_id, ada))
        assert close_stale(older_than=timedelta(hours=1), now=LATER) == 0
        assert UsageRecord.objects.get(request_id=row.request_id).status == "completed"

    def test_a_record_without_receipt_is_closed_free_and_its_hold_released(self, ada, price):
        old, young, told = (
            opening(ada, price),
            opening(ada, price, started_at=NOON + timedelta(hours=1)),
            opening(ada, price),
        )
        open_records([old, young, told])
        apply(receipt(1, told.request_id, ada))
        now = NOON + timedelta(hours=1, minutes=1)
        assert close_stale(older_than=timedelta(minutes=30), now=now) == 1
        assert close_stale(older_than=timedelta(minutes=30), now=now) == 0
        record = UsageRecord.objects.get(request_id=old.request_id)
        assert (record.status, record.error_code, record.cost_nano) == ("failed", "lost", 0)
        assert UsageRecord.objects.get(request_id=told.request_id).status == "completed"
        assert balance(ada.organization_id).held_nano == young.hold_nano

    def test_what_an_ended_gateway_left_without_receipt_is_closed_soon(self, ada, price):
        row = opening(ada, price, gateway_id="gone")
        open_records([row])
        note_gateway_end("gone", now=SOON)
        assert close_stale(older_than=timedelta(hours=1), now=LATER) == 0
        assert close_stale(older_than=timedelta(hours=1), now=LATER + timedelta(seconds=1)) == 1
        assert held_nano(ada.organization_id) == 0

    def test_a_receipt_that_comes_after_all_bills_what_was_served(self, ada, price):
        row = opening(ada, price)
        open_records([row])
        close_stale(older_than=timedelta(0), now=SOON)
        assert apply(receipt(1, row.request_id, ada), now=LATER).unfinished == 1
        assert selectors.record(ada.organization_id, row.request_id).cost_nano == 333_000
        assert balance_nano(ada.organization_id) == USD - 333_000


def test_a_thousand_receipts_are_settled_in_few_statements(ada, price, django_assert_max_num_queries):
    ids = make_calls(ada, price, 1000)
    with django_assert_max_num_queries(12):
        summary = apply(*(receipt(number, request_id, ada) for number, request_id in enumerate(ids, start=1)))
    assert summary.equal == 1000


@pytest.mark.django_db(transaction=True)
def test_repair_and_gateway_at_once_bill_once():
    ada, price = make_account(credit_nano=USD), make_price()
    rows = [opening(ada, price) for _ in range(60)]
    open_records(rows)
    told = [receipt(number, row.request_id, ada) for number, row in enumerate(rows, start=1)]
    apply(*told)
    results = at_once(
        lambda: apply(now=LATER),
        lambda: apply(now=LATER),
        lambda: finish_records([ending(row.request_id) for row in rows[:30]]),
        lambda: finish_records([ending(row.request_id) for row in reversed(rows[20:])]),
    )
    assert not [result for result in results if isinstance(result, Exception)], results
    apply(now=LATER)
    assert balance_nano(ada.organization_id) == USD - 60 * 333_000
    assert (held_nano(ada.organization_id), rate_of(ada).repaired_percent) == (0, 100)
    assert audit.compare() == []
