"""A month closes when every call agrees, or under a named person's waiver; then receipts may go in time."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction

from billing.errors import InvalidPeriod, PeriodNotClosed, PeriodOpen, PeriodUnmatched
from billing.invoices.models import Invoice
from billing.invoices.runs import run_due, run_month
from billing.invoices.services import finalize_invoice
from billing.reconciliation.models import PeriodClose, Receipt
from billing.reconciliation.periods import bounds_of, close_period, csv_row, forget_receipts, period_state
from billing.reconciliation.selectors import match_rates
from billing.reconciliation.services import apply_receipts
from billing.usage.services import Statement, finish_records, open_records
from tests.factories.billing import NOON, ending, make_account, make_calls, make_price, opening, receipt

pytestmark = pytest.mark.django_db
JUNE = datetime(2026, 6, 1, tzinfo=UTC)


def close(**fields):
    return close_period(**{"period": "2026-05", "actor_id": 7, "actor_name": "Ada Operator", "now": JUNE, **fields})


def test_a_month_whose_calls_agree_closes_once():
    account, price = make_account(credit_nano=10**9), make_price()
    ids = make_calls(account, price, 3)
    apply_receipts(source="e", receipts=[receipt(n, i, account) for n, i in enumerate(ids, 1)], now=NOON)
    first = close(waiver="not needed")
    assert (first.calls, first.equal, first.unmatched, first.waiver) == (3, 3, 0, "")
    assert close(actor_id=8, actor_name="Ben") == first
    assert PeriodClose.objects.get().actor_name == "Ada Operator"


def test_a_month_with_unmatched_calls_needs_a_reason_and_keeps_who_gave_it():
    account, price = make_account(credit_nano=10**9), make_price()
    make_calls(account, price, 2)
    with pytest.raises(PeriodUnmatched, match="2 calls of 2026-05"):
        close()
    with pytest.raises(PeriodUnmatched):
        close(waiver="   ")
    closed = close(waiver="journal lost with its disk")
    assert (closed.unmatched, closed.waiver, closed.actor_name) == (2, "journal lost with its disk", "Ada Operator")


def test_a_running_call_keeps_its_month_open():
    account, price = make_account(credit_nano=10**9), make_price()
    open_records([opening(account, price)])
    assert period_state("2026-05").unmatched == 1
    with pytest.raises(PeriodUnmatched):
        close()


def test_a_month_that_runs_and_one_that_is_none_are_refused():
    with pytest.raises(PeriodOpen):
        close(now=JUNE - timedelta(seconds=1))
    with pytest.raises(InvalidPeriod):
        close(period="2026-13")
    assert bounds_of("2026-12") == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_a_close_is_never_changed():
    closed = close()
    closed.waiver = "later thought"
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        closed.save()


def test_the_database_refuses_a_close_without_match_or_waiver():
    with pytest.raises(DatabaseError, match="matched_or_waived"), transaction.atomic():
        PeriodClose.objects.create(
            period="2026-05", closed_at=JUNE, actor_id=1, actor_name="x", calls=1, equal=0, unmatched=1
        )


def test_an_invoice_says_that_its_month_is_not_closed_or_waits_for_it(settings):
    account, price = make_account(credit_limit_nano=10**12), make_price()
    make_calls(account, price)
    assert (run_month("2026-05", now=JUNE).unclosed, Invoice.objects.get().status) == (1, "final")
    settings.INVOICE_REQUIRE_CLOSED_PERIOD = True
    other = make_account(credit_limit_nano=10**12)
    make_calls(other, price)
    waits = run_month("2026-05", now=JUNE)
    assert (waits.waiting, waits.finalized, waits.failed_count, waits.done) == (1, 0, 0, 2)
    draft = Invoice.objects.get(organization_id=other.organization_id)
    with pytest.raises(PeriodNotClosed, match="INVOICE_REQUIRE_CLOSED_PERIOD"):
        finalize_invoice(draft, now=JUNE)
    assert (draft.status, draft.number) == ("draft", None)
    close(waiver="no journal")
    summary = run_due(now=JUNE + timedelta(days=1))
    assert (summary.finalized, summary.waiting, summary.unclosed) == (1, 0, 0)


def test_a_late_receipt_changes_the_next_month_and_not_the_closed_one():
    account, price = make_account(credit_nano=10**9), make_price()
    (request_id,) = make_calls(account, price)
    close(waiver="engine is away")
    late = datetime(2026, 6, 3, tzinfo=UTC)
    apply_receipts(source="e", receipts=[receipt(1, request_id, account, completion_tokens=110)], now=late)
    (adjustment,) = Receipt.objects.get().organization_id and [*_adjustments(request_id)]
    assert adjustment.created_at == late
    assert adjustment.completion_tokens == 10
    assert PeriodClose.objects.get().unmatched == 1


def _adjustments(request_id):
    from billing.usage.models import UsageAdjustment

    return UsageAdjustment.objects.filter(record_id=request_id)


def test_receipts_go_in_batches_after_their_month_was_closed(settings):
    settings.RECEIPT_RETENTION_DAYS = 400
    account, price = make_account(credit_nano=10**9), make_price()
    ids = make_calls(account, price, 7)
    apply_receipts(source="e", receipts=[receipt(n, i, account) for n, i in enumerate(ids, 1)], now=NOON)
    long_after = JUNE + timedelta(days=401)
    assert forget_receipts(now=long_after, batch=3) == 0
    close()
    assert forget_receipts(now=JUNE + timedelta(days=399), batch=3) == 0
    assert forget_receipts(now=long_after, batch=3) == 7
    assert forget_receipts(now=long_after, batch=3) == 0
    assert PeriodClose.objects.get().equal == 7


def test_csv_has_a_row_for_each_day_and_tenant():
    account, price = make_account(credit_nano=10**9), make_price()
    ids = make_calls(account, price, 3)
    apply_receipts(source="e", receipts=[receipt(1, ids[0], account)], now=NOON)
    (rate,) = match_rates(*bounds_of("2026-05"))
    assert csv_row(rate) == (
        "2026-05-15", str(account.organization_id), "3", "1", "0", "0", "0", "2", "0", "0",
        "33.3333", "33.3333", "33.3333",
    )  # fmt: skip


def test_what_an_upstream_says_is_kept_and_judged_like_a_receipt():
    account, price = make_account(credit_nano=10**9), make_price()
    row = opening(account, price, expects_receipt=False)
    open_records([row])
    said = Statement("upstream:3", "chatcmpl-9", 1000, 900, 100, 0)
    finish_records([ending(row.request_id, statement=said)])
    finish_records([ending(row.request_id, statement=said)])
    kept = Receipt.objects.get()
    assert (kept.source, kept.upstream_id, kept.sequence, kept.match_class) == (
        "upstream:3",
        "chatcmpl-9",
        None,
        "pending",
    )
    apply_receipts(source="upstream:3", receipts=[], now=NOON)
    kept.refresh_from_db()
    assert (kept.match_class, kept.is_settled) == ("equal", True)


def test_an_upstream_whose_statement_differs_gets_an_adjustment():
    account, price = make_account(credit_nano=10**9), make_price()
    row = opening(account, price, expects_receipt=False)
    open_records([row])
    said = Statement("upstream:3", "chatcmpl-9", 1000, 900, 90, 0)
    finish_records([ending(row.request_id, status="cancelled", statement=said)])
    apply_receipts(source="upstream:3", receipts=[], now=NOON)
    (adjustment,) = _adjustments(row.request_id)
    assert (adjustment.completion_tokens, adjustment.cost_nano) == (-10, -20_300)
