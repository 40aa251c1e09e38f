"""Fees by the day, credit notes with numbers of their own, write-offs: the ledger follows each, to the cent."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader

from billing.accounts.services import change_language
from billing.errors import CreditNoteRefused, InvalidFee, InvoiceStateRefused, KeyReused, PaymentProviderError
from billing.fees.proration import share_of
from billing.fees.services import add_fee, change_quantity, end_fee
from billing.invoices import annex
from billing.invoices.credit_notes import issue_credit_note
from billing.invoices.models import CreditNote, Invoice
from billing.invoices.pdf import render, render_credit_note
from billing.invoices.selectors import document, due_minor
from billing.invoices.services import draft_invoice, finalize_invoice, void_invoice, write_off
from billing.ledger import audit
from billing.ledger.models import LedgerEntry
from billing.ledger.selectors import balance
from billing.payments import services as payments
from billing.tax.services import set_rate
from tests.factories.billing import USD, make_account, make_calls, make_price

pytestmark = pytest.mark.django_db

IN_JUNE = datetime(2026, 6, 2, tzinfo=UTC)
IN_MAY = datetime(2026, 5, 10, tzinfo=UTC)


@pytest.fixture
def ada():
    account = make_account(credit_limit_nano=1000 * USD)
    make_calls(account, make_price(), prompt_tokens=250_000_000, cached_tokens=0, completion_tokens=0)
    return account


def issue(account, period="2026-05", now=IN_JUNE):
    return finalize_invoice(draft_invoice(organization_id=account.organization_id, period=period, now=now), now=now)


def fee(account, **fields):
    defaults = {
        "name": "Team seats",
        "quantity": 3,
        "unit_amount_minor": 20_00,
        "starts_on": date(2026, 5, 1),
        "now": IN_MAY,
        "actor_id": None,
    }
    return add_fee(organization_id=account.organization_id, **{**defaults, **fields})


def read(pdf):
    """The words on the paper, fixed spaces as plain ones."""
    return "\n".join(page.extract_text() for page in PdfReader(BytesIO(pdf)).pages).replace("\u00a0", " ")


def house(kind):
    return sum(LedgerEntry.objects.filter(account__kind=kind).values_list("amount_nano", flat=True))


class TestFees:
    def test_a_fee_stands_beside_usage_and_is_owed(self, ada):
        fee(ada)
        invoice = issue(ada)
        assert (invoice.subtotal_minor, invoice.fees_nano, invoice.total_minor) == (160_00, 60 * USD, 160_00)
        assert [line.description for line in document(invoice).lines][-1] == "Team seats"
        assert balance(ada.organization_id).receivable_nano == -160 * USD
        void_invoice(invoice, reason="test")
        assert balance(ada.organization_id).receivable_nano == -100 * USD
        assert audit.compare() == []

    def test_part_of_a_month_costs_its_days(self, ada):
        fee(ada, starts_on=date(2026, 5, 20))
        [line] = issue(ada).lines.filter(kind="fee")
        assert (line.days, line.days_of_month, line.amount_minor) == (12, 31, 23_23)
        assert "12 of 31 days" in document(line.invoice).lines[-1].description

    def test_other_seats_share_the_month_without_gap_or_overlap(self, ada):
        old = fee(ada)
        change_quantity(fee_id=old.id, quantity=5, on=date(2026, 5, 11), now=IN_MAY, actor_id=None)
        lines = issue(ada).lines.filter(kind="fee")
        assert sorted(lines.values_list("quantity", "days")) == [(3, 10), (5, 21)]

    def test_a_month_with_fees_alone_has_an_invoice_and_one_after_the_end_none(self, ada):
        running = fee(ada)
        issue(ada)
        end_fee(fee_id=running.id, ends_on=date(2026, 7, 1), now=IN_JUNE)
        june = issue(ada, "2026-06", datetime(2026, 7, 2, tzinfo=UTC))
        assert (june.total_minor, june.usage_nano) == (60_00, 0)
        assert issue(ada, "2026-07", datetime(2026, 8, 2, tzinfo=UTC)).lines.count() == 0

    def test_what_is_refused_says_why(self, ada):
        with pytest.raises(InvalidFee, match="month that is over"):
            fee(ada, starts_on=date(2026, 4, 30))
        with pytest.raises(InvalidFee, match="prepaid"):
            fee(make_account())
        running = fee(ada)
        with pytest.raises(InvalidFee, match="later day"):
            end_fee(fee_id=running.id, ends_on=date(2026, 5, 1), now=IN_MAY)
        end_fee(fee_id=running.id, ends_on=date(2026, 5, 20), now=IN_MAY)
        with pytest.raises(InvalidFee, match="ends on 2026-05-20 already"):
            end_fee(fee_id=running.id, ends_on=date(2026, 5, 21), now=IN_MAY)

    @given(cut=st.integers(0, 31), quantity=st.integers(1, 1000), amount=st.integers(1, 10**7))
    def test_two_parts_of_a_month_are_the_whole_to_a_cent(self, cut, quantity, amount):
        month = {"first": date(2026, 5, 1), "after": date(2026, 6, 1)}
        day = date(2026, 5, 1) + timedelta(days=cut)
        each = {"quantity": quantity, "unit_amount_minor": amount}
        before = share_of(**each, starts_on=date(2020, 1, 1), ends_on=day, **month)
        after = share_of(**each, starts_on=day, ends_on=None, **month)
        parts = [part for part in (before, after) if part]
        assert sum(part.days for part in parts) == 31
        assert abs(sum(part.amount_minor for part in parts) - quantity * amount) <= 1


def credit(invoice, total_minor, key="note-1", **fields):
    return issue_credit_note(
        invoice=invoice, total_minor=total_minor, reason="Goodwill", key=key, actor_id=None, **fields
    )


class TestCreditNotes:
    @pytest.fixture
    def invoice(self, ada, settings):
        settings.INVOICE_ISSUER_COUNTRY = "DE"
        set_rate(country="DE", name="VAT", percent=Decimal(19), effective_from=date(2020, 1, 1), actor_id=None)
        return issue(ada)

    def test_less_is_to_be_paid_and_the_ledger_knows(self, invoice):
        note = credit(invoice, 59_50)
        assert (note.amount_minor, note.tax_minor, note.effect) == (50_00, 9_50, "reduces")
        assert due_minor(invoice) == 59_50
        assert balance(invoice.organization_id).receivable_nano == -59_500_000_000
        assert (house("adjustments"), house("tax")) == (-50 * USD, 9_500_000_000)
        assert "$59.50 of it was credited" in document(invoice).note
        assert audit.compare() == []

    def test_credited_in_full_it_is_settled_and_parts_are_the_whole(self, invoice):
        notes = [credit(invoice, amount, key=str(amount)) for amount in (33_33, 33_34, 52_33)]
        assert sum(note.tax_minor for note in notes) == invoice.tax_minor
        assert Invoice.objects.get(id=invoice.id).status == "paid"
        assert balance(invoice.organization_id).receivable_nano == 0
        with pytest.raises(CreditNoteRefused, match=r"\$0.00 of invoice"):
            credit(invoice, 1, key="more")

    def test_a_repeat_and_another_amount_under_its_key(self, invoice):
        assert credit(invoice, 10_00).id == credit(invoice, 10_00).id
        with pytest.raises(KeyReused):
            credit(invoice, 11_00)
        with pytest.raises(CreditNoteRefused, match="can still be credited"):
            credit(invoice, 200_00, key="much")

    def test_numbers_have_a_series_of_their_own_without_a_gap(self, invoice):
        first = credit(invoice, 1_00)

        def fail():
            with transaction.atomic():
                credit(invoice, 1_00, key="lost")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert [first.number, credit(invoice, 1_00, key="second").number] == ["CN-000001", "CN-000002"]

    def test_stripe_has_it_once_after_its_invoice(self, invoice, fake, gateway):
        note = credit(invoice, 20_00)
        with pytest.raises(PaymentProviderError, match="not at the provider yet"):
            payments.push_credit_note(note.id, gateway=gateway)
        payments.push_invoice(invoice.id, gateway=gateway)
        fake.fail(path="/v1/credit_notes", kind="lost_answer")
        with pytest.raises(PaymentProviderError):
            payments.push_credit_note(note.id, gateway=gateway)
        assert payments.credit_notes_to_push() == [note.id]
        fake.api._answers.clear()
        pushed = payments.push_credit_note(note.id, gateway=gateway)
        [kept] = fake.store.all("credit_note")
        assert (pushed.external_id, kept["amount"], kept["metadata"]["number"]) == (kept["id"], 20_00, note.number)
        assert fake.store.all("invoice")[0]["amount_remaining"] == invoice.total_minor - 20_00

    def test_a_reduced_invoice_is_paid_by_the_rest(self, invoice, fake, gateway, tell):
        payments.push_invoice(invoice.id, gateway=gateway)
        payments.push_credit_note(credit(invoice, 19_00).id, gateway=gateway)
        fake.store.pay(fake.store.all("invoice")[0]["id"])
        assert tell(fake.events("invoice.paid")[0]) == "applied"
        assert Invoice.objects.get(id=invoice.id).status == "paid"
        assert (balance(invoice.organization_id).receivable_nano, house("cash")) == (0, -100 * USD)

    def test_of_a_paid_invoice_the_money_goes_back(self, invoice, fake, gateway, tell):
        payments.push_invoice(invoice.id, gateway=gateway)
        fake.store.pay(fake.store.all("invoice")[0]["id"])
        tell(fake.events("invoice.paid")[0])
        note = credit(invoice, 11_90)
        payments.push_credit_note(note.id, gateway=gateway)
        assert (note.effect, fake.store.all("credit_note")[0]["refund_amount"]) == ("refunds", 11_90)
        assert (house("cash"), house("tax")) == (-107_100_000_000, 17_100_000_000)
        assert audit.compare() == []

    def test_a_credited_invoice_is_not_voided_and_a_draft_not_credited(self, invoice, ada):
        credit(invoice, 1_00)
        with pytest.raises(CreditNoteRefused, match="credited in part"):
            void_invoice(invoice, reason="x")
        draft = draft_invoice(organization_id=ada.organization_id, period="2026-06", now=IN_JUNE)
        with pytest.raises(CreditNoteRefused, match="is draft"):
            credit(draft, 1, key="draft")

    def test_an_issued_note_is_frozen(self, invoice):
        note = credit(invoice, 1_00)
        with pytest.raises(DatabaseError), transaction.atomic():
            CreditNote.objects.filter(id=note.id).update(amount_minor=2)
        with pytest.raises(DatabaseError), transaction.atomic():
            note.delete()

    def test_on_paper_in_the_payers_language(self, ada, settings):
        settings.INVOICE_ISSUER, settings.INVOICE_FOOTER = "Beispiel GmbH\nBerlin", "IBAN DE02 1203 0000 0000 2020 51"
        change_language(organization_id=ada.organization_id, language="de")
        invoice = issue(ada)
        page = read(render(invoice))
        for text in (
            "Rechnung",
            "Seite 1 von 1",
            "100,00 $",
            "2. Juni 2026",
            "31. Mai 2026",
            "Eingabe-Token",
            "IBAN DE02",
        ):
            assert text in page, text
        note = credit(invoice, 10_00)
        page = read(render_credit_note(note))
        for text in ("Gutschrift", note.number, invoice.number, "10,00 $", "Goodwill"):
            assert text in page, text


class TestWriteOffs:
    def test_a_write_off_is_a_loss_until_it_is_paid_after_all(self, ada, fake, gateway, tell):
        invoice = issue(ada)
        payments.push_invoice(invoice.id, gateway=gateway)
        lost = write_off(Invoice.objects.get(id=invoice.id), actor_id=None, reason="insolvent")
        assert (lost.status, house("bad_debt")) == ("uncollectible", -100 * USD)
        assert balance(ada.organization_id).receivable_nano == 0
        payments.give_up_at_provider(invoice.id, gateway=gateway)
        assert tell(fake.events("invoice.marked_uncollectible")[0]) == "repeated"
        stripe_invoice = fake.store.all("invoice")[0]
        stripe_invoice["status"] = "open"
        fake.store.pay(stripe_invoice["id"])
        assert tell(fake.events("invoice.paid")[0]) == "applied"
        assert (house("bad_debt"), house("cash")) == (0, -100 * USD)
        assert audit.compare() == []

    def test_an_invoice_that_nobody_has_is_not_given_up(self, ada):
        with pytest.raises(InvoiceStateRefused):
            write_off(issue(ada), actor_id=None, reason="x")


def test_a_voided_invoice_cannot_be_paid_at_stripe(ada, fake, gateway):
    invoice = issue(ada)
    payments.push_invoice(invoice.id, gateway=gateway)
    void_invoice(invoice, reason="test")
    for _ in range(2):
        payments.void_at_provider(invoice.id, gateway=gateway)
    assert fake.store.all("invoice")[0]["status"] == "void"


def test_the_annex_sums_to_the_invoice(ada):
    make_calls(ada, make_price(), 5, started_at=IN_MAY)
    invoice = issue(ada)
    lines = annex.render(invoice).decode().splitlines()
    assert lines[0].startswith("day,project_id")
    assert lines[-1] == f"total,,,,,,,,,,{Decimal(invoice.usage_nano).scaleb(-9):f},USD"
    assert len(lines) == 4
