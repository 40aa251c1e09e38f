"""An invoice is its records and the ledger, to the nano-unit; one per organization and month; frozen once issued."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.errors import InvoiceStateRefused, LedgerMismatch, PeriodOpen, UnknownAccount
from billing.invoices import lifecycle
from billing.invoices.models import Invoice, InvoiceLine, InvoiceStatus
from billing.invoices.periods import month, month_before
from billing.invoices.runs import grace, run_due, run_month
from billing.invoices.selectors import document, find_invoice, invoices_in, invoices_of
from billing.invoices.services import draft_invoice, finalize_invoice, mark_paid, void_invoice
from billing.ledger import audit
from billing.ledger.models import LedgerEntry
from billing.ledger.selectors import balance, balance_nano
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.models import UsageRecord
from billing.usage.selectors import spent_nano
from billing.usage.services import open_records
from tests.billing.concurrency import at_once
from tests.factories.billing import NOON, USD, make_account, make_calls, make_price, opening

pytestmark = pytest.mark.django_db

MAY = "2026-05"
IN_JUNE = datetime(2026, 6, 2, tzinfo=UTC)


def draft(account, *, period=MAY, now=IN_JUNE):
    return draft_invoice(organization_id=account.organization_id, period=period, now=now)


def issue(account, *, period=MAY, now=IN_JUNE):
    return finalize_invoice(draft(account, period=period, now=now), now=now)


def correct(request_id, completion_tokens, *, key="k"):
    record = UsageRecord.objects.select_related("price").get(request_id=request_id)
    counts = Counts(record.prompt_tokens, record.cached_tokens, completion_tokens, 0)
    return adjust_record(record=record, status=record.status, counts=counts, key=key, reason="test", now=IN_JUNE)


@pytest.fixture
def price():
    return make_price()


@pytest.fixture
def ada():
    return make_account(credit_limit_nano=1000 * USD)


class TestLines:
    def test_a_line_for_each_model_kind_and_price_version(self, ada, price):
        newer = make_price(at=NOON, input_nano=800_000_000)
        other = make_price("other")
        make_calls(ada, price, 10)
        make_calls(ada, newer, 10)
        make_calls(ada, other, 1, status="cancelled")
        make_calls(ada, other, 5, status="failed")
        invoice = issue(ada)
        lines = list(invoice.lines.values_list("model", "price_id", "token_kind", "tokens", "amount_nano"))
        assert lines == [
            ("m", price.id, "input", 1000, 400_000),
            ("m", price.id, "cached_input", 9000, 900_000),
            ("m", price.id, "output", 1000, 2_030_000),
            ("m", newer.id, "input", 1000, 800_000),
            ("m", newer.id, "cached_input", 9000, 900_000),
            ("m", newer.id, "output", 1000, 2_030_000),
            ("other", other.id, "input", 100, 40_000),
            ("other", other.id, "cached_input", 900, 90_000),
            ("other", other.id, "output", 100, 203_000),
        ]
        assert [line.description for line in document(invoice).lines[:4:3]] == [
            "m, input tokens, price from 1 January 2020",
            "m, input tokens, price from 15 May 2026",
        ]

    def test_every_record_is_bound_once_failed_ones_too(self, ada, price):
        make_calls(ada, price, 3)
        make_calls(ada, price, 2, status="failed")
        open_records([opening(ada, price)])
        invoice = issue(ada)
        assert invoice.records.count() == 5
        assert UsageRecord.objects.filter(invoice=None).count() == 1
        with pytest.raises(DatabaseError, match="already on invoice"), transaction.atomic():
            invoice.records.update(invoice_id=invoice.id + 1)

    @given(
        calls=st.lists(
            st.tuples(st.integers(0, 10**7), st.integers(0, 100), st.integers(0, 10**7)), min_size=1, max_size=12
        ),
        credit_nano=st.integers(0, 3 * USD),
        is_prepaid=st.booleans(),
    )
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def test_invoice_records_and_ledger_agree_to_the_nano_unit(self, calls, credit_nano, is_prepaid):
        price = make_price(input_nano=413_000_007, cached_input_nano=99_999_999)
        account = make_account(credit_nano=credit_nano, credit_limit_nano=0 if is_prepaid else 10**15)
        for prompt, cached_percent, completion in calls:
            make_calls(
                account,
                price,
                prompt_tokens=prompt,
                cached_tokens=prompt * cached_percent // 100,
                completion_tokens=completion,
            )
        invoice = issue(account)
        records_nano = account_records(account).aggregate(total=Sum("cost_nano"))["total"]
        revenue_nano = LedgerEntry.objects.filter(
            account__kind="revenue", transaction__key__in=[f"usage:{pk}" for pk in ids_of(account)]
        ).aggregate(total=Sum("amount_nano"))["total"]
        lines_nano = sum(line.amount_nano for line in invoice.lines.all())
        assert invoice.usage_nano == lines_nano == records_nano == (revenue_nano or 0)
        assert invoice.subtotal_minor == sum(line.amount_minor for line in invoice.lines.all())
        # What is owed is the total, in whole cents, and for a prepaid organization nothing.
        state = balance(account.organization_id)
        assert state.receivable_nano == -invoice.total_minor * 10_000_000
        if is_prepaid:
            assert invoice.total_minor == 0
        assert audit.compare() == []


def account_records(account):
    return UsageRecord.objects.filter(organization_id=account.organization_id)


def ids_of(account):
    return account_records(account).values_list("request_id", flat=True)


class TestRounding:
    def test_a_line_is_rounded_once_and_the_rest_is_posted(self, ada, price):
        make_calls(ada, price, 100)
        invoice = issue(ada)
        # 0.004 + 0.009 + 0.0203 dollars: each line to the cent.
        assert [line.amount_minor for line in invoice.lines.all()] == [0, 1, 2]
        assert (invoice.usage_nano, invoice.total_minor) == (33_300_000, 3)
        assert invoice.rounding_nano == 30_000_000 - 33_300_000
        assert balance(ada.organization_id).receivable_nano == -30_000_000
        entries = LedgerEntry.objects.filter(transaction__key=f"rounding:invoice:{invoice.id}")
        assert dict(entries.values_list("account__kind", "amount_nano")) == {
            "receivable": 3_300_000,
            "rounding": -3_300_000,
        }

    def test_prepaid_usage_is_shown_with_its_credit_and_nothing_is_due(self, price):
        ada = make_account(credit_nano=5 * USD)
        make_calls(ada, price, 100)
        invoice = issue(ada)
        assert (invoice.subtotal_minor, invoice.credit_minor, invoice.total_minor) == (3, 3, 0)
        assert (invoice.credit_nano, invoice.rounding_nano) == (33_300_000, 0)
        assert balance_nano(ada.organization_id) == 5 * USD - 33_300_000
        assert document(invoice).status == "Nothing due"

    def test_credit_first_and_the_rest_is_due(self, price):
        ada = make_account(credit_nano=10_000_000, credit_limit_nano=USD)
        make_calls(ada, price, 100)
        invoice = issue(ada)
        assert (invoice.subtotal_minor, invoice.credit_minor, invoice.total_minor) == (3, 1, 2)

    def test_a_currency_without_cents(self):
        ada, price = (
            make_account(currency="JPY", credit_limit_nano=10**15),
            make_price(currency="JPY", output_nano=10**15),
        )
        make_calls(ada, price, 3)
        invoice = issue(ada)
        assert (invoice.subtotal_minor, document(invoice).total) == (300, "¥300")


class TestStates:
    def test_an_open_month_is_a_preview_that_binds_nothing(self, ada, price):
        make_calls(ada, price, 2)
        make_calls(ada, price, 1, started_at=NOON - timedelta(days=30))
        preview = draft(ada, now=NOON)
        assert (preview.status, preview.number, preview.usage_nano) == ("draft", None, 666_000)
        assert not UsageRecord.objects.filter(invoice__isnull=False).exists()
        with pytest.raises(PeriodOpen, match="not over in UTC"):
            finalize_invoice(preview, now=month(MAY, "UTC").end - timedelta(microseconds=1))
        make_calls(ada, price, 1)
        again = draft(ada, now=NOON)
        assert (again.id, again.usage_nano, again.lines.count()) == (preview.id, 999_000, 3)

    def test_finalizing_takes_what_came_after_the_draft(self, ada, price):
        make_calls(ada, price)
        prepared = draft(ada)
        make_calls(ada, price)
        invoice = finalize_invoice(prepared, now=IN_JUNE)
        assert (invoice.usage_nano, invoice.finalized_at) == (666_000, IN_JUNE)
        assert invoice.due_at == IN_JUNE + timedelta(days=30)

    def test_a_repeat_changes_nothing(self, ada, price):
        make_calls(ada, price)
        invoice = issue(ada)
        make_calls(ada, price)
        assert finalize_invoice(invoice, now=IN_JUNE).number == invoice.number
        assert draft(ada).id == invoice.id
        assert find_invoice(invoice.id).usage_nano == 333_000

    def test_an_issued_invoice_is_frozen_by_the_database(self, ada, price):
        make_calls(ada, price, 100)
        invoice = issue(ada)
        changes = [
            lambda: Invoice.objects.filter(id=invoice.id).update(total_minor=0, subtotal_minor=0),
            lambda: Invoice.objects.filter(id=invoice.id).update(bill_to="someone else"),
            lambda: Invoice.objects.filter(id=invoice.id).update(status="draft", number=None),
            lambda: invoice.lines.update(tokens=1),
            lambda: invoice.lines.all().delete(),
            lambda: InvoiceLine.objects.bulk_create([copy_of(invoice.lines.first())]),
        ]
        for change in changes:
            with (
                pytest.raises(DatabaseError, match=r"frozen|nothing but its state|cannot go from"),
                transaction.atomic(),
            ):
                change()

    def test_lines_that_do_not_sum_cannot_be_issued(self, ada, price):
        make_calls(ada, price, 100)
        prepared = draft(ada)
        InvoiceLine.objects.filter(invoice=prepared, token_kind="output").update(amount_minor=500)
        with pytest.raises(DatabaseError, match="its lines sum to"), transaction.atomic():
            Invoice.objects.filter(id=prepared.id).update(status="final", number="X-1")

    def test_void_frees_the_usage_for_another_invoice(self, ada, price):
        make_calls(ada, price, 100)
        first = issue(ada)
        owed = balance(ada.organization_id).receivable_nano
        voided = void_invoice(first, reason="wrong address", now=IN_JUNE)
        assert void_invoice(first, reason="again").void_reason == "wrong address"
        assert balance(ada.organization_id).receivable_nano == -33_300_000
        second = issue(ada)
        assert second.id != voided.id
        assert second.number != voided.number
        assert (second.usage_nano, second.records.count()) == (first.usage_nano, 100)
        assert balance(ada.organization_id).receivable_nano == owed
        with pytest.raises(InvoiceStateRefused):
            finalize_invoice(voided, now=IN_JUNE)

    def test_a_paid_invoice_is_not_voided(self, ada, price):
        make_calls(ada, price)
        invoice = issue(ada)
        mark_paid(invoice, now=IN_JUNE)
        with pytest.raises(InvoiceStateRefused, match="is paid; it cannot become void"):
            void_invoice(invoice, reason="x")
        assert finalize_invoice(invoice).status == "paid"

    def test_the_database_knows_the_same_transitions(self, ada, price):
        make_calls(ada, price)
        for old in InvoiceStatus:
            for new in InvoiceStatus:
                if old == new:
                    continue
                with transaction.atomic():
                    invoice = issue(ada) if old != InvoiceStatus.DRAFT else draft(ada)
                    way = {"uncollectible": ["sent", "uncollectible"]}.get(old, [old])
                    for step in way if old not in (InvoiceStatus.DRAFT, InvoiceStatus.FINAL) else ():
                        Invoice.objects.filter(id=invoice.id).update(status=step)
                    found = Invoice.objects.filter(id=invoice.id)
                    number = {"number": "X-1"} if old == InvoiceStatus.DRAFT else {}
                    try:
                        with transaction.atomic():
                            found.update(status=new, **number)
                        is_allowed = True
                    except DatabaseError:
                        is_allowed = False
                    transaction.set_rollback(True)
                assert is_allowed == (new in lifecycle.TRANSITIONS[old]), (old, new)

    def test_without_an_account_there_is_no_invoice(self):
        with pytest.raises(UnknownAccount):
            draft_invoice(organization_id=12345, period=MAY)


def copy_of(line):
    line.pk, line.position, line.kind = None, 99, "adjustment"
    return line


class TestNumbers:
    def test_they_have_no_gap_even_when_one_fails(self, price, settings):
        accounts = [make_account(credit_limit_nano=USD) for _ in range(3)]
        for account in accounts:
            make_calls(account, price)
        first = issue(accounts[0])

        def fail():
            with transaction.atomic():
                issue(accounts[1])
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        second = issue(accounts[2])
        start = int(first.number.rpartition("-")[2])
        assert second.number == f"{settings.INVOICE_NUMBER_PREFIX}-{start + 1:06d}"
        assert Invoice.objects.filter(organization_id=accounts[1].organization_id).count() == 0

    def test_each_prefix_counts_by_itself(self, price, settings):
        settings.INVOICE_NUMBER_PREFIX = "EU"
        ada = make_account(credit_limit_nano=USD)
        make_calls(ada, price)
        assert issue(ada).number == "EU-000001"


class TestLateAndCorrected:
    def test_late_usage_comes_on_the_next_invoice_as_such(self, ada, price):
        make_calls(ada, price)
        may = issue(ada)
        make_calls(ada, price)
        june_start = datetime(2026, 6, 3, tzinfo=UTC)
        make_calls(ada, price, 2, started_at=june_start)
        june = issue(ada, period="2026-06", now=datetime(2026, 7, 2, tzinfo=UTC))
        kinds = dict(june.lines.values_list("kind").annotate(total=Sum("amount_nano")))
        assert kinds == {"usage": 666_000, "late_usage": 333_000}
        assert "m, input tokens, of earlier months" in [line.description for line in document(june).lines]
        assert may.usage_nano + june.usage_nano == 4 * 333_000

    def test_a_correction_before_the_invoice_is_on_it_and_one_after_on_the_next(self, ada, price):
        first, second = make_calls(ada, price, 2)
        correct(first, 150)
        may = issue(ada)
        assert dict(may.lines.values_list("kind").annotate(total=Sum("amount_nano"))) == {
            "usage": 666_000,
            "adjustment": 50 * 2030,
        }
        start, end = month(MAY, "UTC").start, month(MAY, "UTC").end
        assert spent_nano(ada.organization_id, start, end) == may.usage_nano
        correct(second, 300, key="later")
        june = issue(ada, period="2026-06", now=datetime(2026, 7, 2, tzinfo=UTC))
        assert list(june.lines.values_list("kind", "tokens", "amount_nano")) == [("adjustment", 200, 200 * 2030)]
        assert UsageRecord.objects.get(request_id=second).completion_tokens == 100

    def test_too_much_comes_back_as_credit(self, ada, price):
        [request_id] = make_calls(ada, price)
        correct(request_id, 0)
        correct(request_id, 0)
        state = balance(ada.organization_id)
        assert (state.credit_nano, state.receivable_nano) == (203_000, -333_000)
        invoice = issue(ada)
        assert (invoice.usage_nano, invoice.credit_nano) == (130_000, -203_000)
        assert audit.compare() == []

    def test_usage_without_its_ledger_transaction_stops_the_invoice(self, ada, price):
        make_calls(ada, price)
        row = opening(ada, price)
        open_records([row])
        UsageRecord.objects.filter(request_id=row.request_id).update(
            status="completed", finished_at=NOON, output_cost_nano=5
        )
        with pytest.raises(LedgerMismatch, match="sum to 333005 nano and their ledger transactions to 333000"):
            issue(ada)


class TestBorders:
    @pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "Europe/Amsterdam", "America/New_York"])
    @pytest.mark.parametrize("name", ["2026-03", "2026-10"])
    def test_the_first_instant_is_in_and_the_last_is_out(self, price, zone, name):
        ada = make_account(credit_limit_nano=USD, time_zone=zone)
        period = month(name, zone)
        tick = timedelta(microseconds=1)
        inside = [make_calls(ada, price, started_at=at)[0] for at in (period.start, period.end - tick)]
        [after] = make_calls(ada, price, started_at=period.end)
        invoice = issue(ada, period=name, now=period.end)
        assert set(invoice.records.values_list("request_id", flat=True)) == set(inside)
        assert UsageRecord.objects.get(request_id=after).invoice_id is None


class TestRuns:
    def test_a_run_bills_each_account_once(self, price):
        busy, idle = make_account(credit_limit_nano=USD), make_account()
        make_calls(busy, price)
        preview = run_month(MAY, preview=True, now=NOON)
        assert (preview.drafted, preview.empty) == (1, 1)
        assert run_month(MAY, now=NOON).still_open == 2
        first = run_month(MAY, now=IN_JUNE)
        assert (first.finalized, first.empty, first.failed) == (1, 1, [])
        again = run_month(MAY, now=IN_JUNE)
        assert (again.already_final, again.finalized) == (1, 0)
        assert [row.organization_id for row in invoices_in(MAY)] == [busy.organization_id]
        assert not invoices_of(idle.organization_id).exists()

    def test_one_account_that_fails_stops_no_other(self, price):
        broken, fine = make_account(credit_limit_nano=USD), make_account(credit_limit_nano=USD)
        make_calls(fine, price)
        row = opening(broken, price)
        open_records([row])
        UsageRecord.objects.filter(request_id=row.request_id).update(
            status="completed", finished_at=NOON, output_cost_nano=5
        )
        summary = run_month(MAY, now=IN_JUNE)
        assert summary.finalized == 1
        [(organization_id, reason)] = summary.failed
        assert organization_id == broken.organization_id
        assert "rebuild_balances" in reason

    def test_hourly_for_48_hours_over_all_zones_makes_one_invoice_each(self, price):
        # The sign of Etc zones is turned: Etc/GMT-14 is 14 hours ahead of UTC.
        zones = [f"Etc/GMT{offset:+d}" for offset in range(-14, 12)] + ["Asia/Kathmandu", "Europe/Amsterdam"]
        accounts = [make_account(credit_limit_nano=USD, time_zone=zone) for zone in zones]
        border = datetime(2026, 6, 1, tzinfo=UTC)
        for account in accounts:
            make_calls(account, price, started_at=NOON)
            local_end = month(MAY, account.time_zone).end
            make_calls(account, price, started_at=local_end - timedelta(seconds=1))
            make_calls(account, price, started_at=local_end)
        issued_at = {}
        for hour in range(-16, 32):
            now = border + timedelta(hours=hour)
            run_due(now=now)
            for row in Invoice.objects.filter(period=MAY, status="final"):
                issued_at.setdefault(row.organization_id, now)
        assert Invoice.objects.count() == len(zones)
        for account in accounts:
            [invoice] = invoices_of(account.organization_id)
            assert (invoice.period, invoice.usage_nano, invoice.status) == (MAY, 666_000, "final")
            due = month(MAY, account.time_zone).end + grace()
            assert due <= issued_at[account.organization_id] < due + timedelta(hours=1)

    def test_the_month_before_the_first_of_january_is_december(self):
        assert month_before(datetime(2027, 1, 1, tzinfo=UTC), "UTC").name == "2026-12"


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_many_runs_at_once_make_one_invoice(self):
        ada, price = make_account(credit_limit_nano=USD), make_price()
        make_calls(ada, price, 20)
        summaries = at_once(*[lambda: run_month(MAY, now=IN_JUNE)] * 4)
        assert not [summary for summary in summaries if isinstance(summary, Exception)]
        assert not [reason for summary in summaries for reason in summary.failed]
        [invoice] = invoices_of(ada.organization_id)
        assert (invoice.status, invoice.usage_nano) == ("final", 20 * 333_000)

    def test_usage_that_finishes_during_the_run_is_billed_once(self):
        ada, price = make_account(credit_limit_nano=USD), make_price()
        at_once(
            *[lambda: make_calls(ada, price, 5)] * 4,
            *[lambda: run_month(MAY, now=IN_JUNE)] * 2,
        )
        run_month("2026-06", now=datetime(2026, 7, 2, tzinfo=UTC))
        billed = sum(row.usage_nano for row in invoices_of(ada.organization_id) if row.status == "final")
        assert billed == 20 * 333_000
        assert not UsageRecord.objects.filter(invoice=None).exists()
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM billing_invoice WHERE status = 'final' AND number IS NULL")
            assert cursor.fetchone() == (0,)
