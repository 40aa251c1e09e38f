"""Buying credit, codes, auto-recharge, exports and the operator's acts, through the pages and the Stripe fake."""

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from billing import tasks
from billing.accounts.models import BillingAccount
from billing.accounts.services import change_credit_limit
from billing.credits.models import AutoRecharge, Refund, TopUp
from billing.exports.models import Export
from billing.exports.services import make
from billing.fees.models import RecurringFee
from billing.invoices import runs
from billing.invoices.models import CreditNote, Invoice
from billing.invoices.services import draft_invoice, finalize_invoice
from billing.ledger.selectors import balance
from billing.payments.models import PaymentEvent
from billing.tax.models import TaxIdCheck, TaxRate
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.operator import services as operator
from portal.organizations.models import Project
from portal.users.models import User
from tests.factories.billing import USD, make_account, make_calls, make_price
from tests.factories.portal import make_cast
from tests.fakes.stripe import FakeStripe

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def server():
    with FakeStripe() as running:
        yield running


@pytest.fixture
def fake(server, settings, tmp_path):
    """The product speaks to the fake."""
    server.reset()
    settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE = server.secret_key, server.url
    settings.STRIPE_WEBHOOK_SECRETS = [server.webhook_secret]
    settings.VAR_DIR = tmp_path
    cache.clear()
    return server


@pytest.fixture
def people():
    return make_cast()


@pytest.fixture
def org(people):
    return people.organization


@pytest.fixture
def ada(client, people):
    client.force_login(people.ada)
    return client


@pytest.fixture
def oda(client, people):
    client.force_login(people.oda)
    return client


def page(name, *args):
    return reverse(f"portal:{name}", args=args)


def key_in(answer):
    return re.search(r'name="key" value="([0-9a-f-]+)"', answer.content.decode()).group(1)


def buy(client, org, amount="50", **fields):
    key = key_in(client.get(page("credit", org.slug)))
    return client.post(page("top_up_new", org.slug), {"amount": amount, "key": key, **fields})


class TestBuying:
    def test_from_the_form_to_the_providers_page_and_back(self, ada, org, fake):
        before = balance(org.id).credit_nano
        answer = buy(ada, org)
        top_up = TopUp.objects.get()
        assert (answer.status_code, answer["Location"]) == (302, page("top_up", org.slug, top_up.id))
        waiting = ada.get(answer["Location"]).content.decode()
        assert "Waiting for payment" in waiting
        assert top_up.url in waiting
        fake.store.complete_checkout(top_up.session_id)
        assert "The payment has arrived" in ada.get(answer["Location"]).content.decode()
        assert balance(org.id).credit_nano == before + 50 * USD
        assert AuditEvent.objects.filter(action="credit.checkout_opened", organization_id=org.id).count() == 1

    def test_odd_amounts_are_refused_at_the_field(self, ada, org, fake):
        for amount, said in (("1", "Between $5.00"), ("x", "not an amount"), ("5.001", "at most 2 decimals")):
            answer = buy(ada, org, amount)
            assert (answer.status_code, said in answer.content.decode()) == (400, True)
        assert not fake.store.all("checkout.session")

    def test_a_provider_that_is_away_is_said_and_nothing_breaks(self, ada, org, fake):
        fake.fail(path="/v1/checkout/sessions", status=500)
        answer = buy(ada, org)
        assert (answer.status_code, "could not be opened" in answer.content.decode()) == (400, True)

    def test_who_may_not_pay_may_not_look(self, client, people, org, fake):
        client.force_login(people.ben)
        assert client.get(page("credit", org.slug)).status_code == 403
        client.force_login(people.cyd)
        assert client.get(page("credit", org.slug)).status_code == 404
        top_up = TopUp.objects.create(
            organization=org, kind="checkout", key="k", currency="USD", amount_minor=500, tax_minor=0
        )
        other = people.cyd.memberships.get().organization
        assert client.get(page("top_up", other.slug, top_up.id)).status_code == 404

    def test_without_a_provider_the_page_says_whom_to_ask(self, ada, org):
        assert "ask its operator" in ada.get(page("credit", org.slug)).content.decode()

    def test_the_providers_own_page_is_a_link_for_this_payer(self, ada, org, fake):
        assert 'href="https://billing.example/' in ada.get(page("payment_page", org.slug)).content.decode()
        [session] = fake.store.all("billing_portal.session")
        assert session["return_url"].endswith(page("credit", org.slug))

    def test_auto_recharge_needs_a_card_and_then_charges_it(self, ada, org, fake):
        rule = {"is_enabled": "on", "threshold": "10", "amount": "20", "ceiling": "100"}
        assert "No card is kept" in ada.post(page("auto_recharge", org.slug), rule).content.decode()
        buy(ada, org, "5", keeps_card="on")
        top_up = TopUp.objects.get()
        fake.store.complete_checkout(top_up.session_id)
        ada.get(page("top_up", org.slug, top_up.id))
        assert ada.post(page("auto_recharge", org.slug), {**rule, "threshold": "40"}).status_code == 302
        tasks.recharge(org.id)
        assert AutoRecharge.objects.get().paused_at is None
        assert TopUp.objects.filter(kind="recharge", state="paid", amount_minor=30_00).count() == 1
        assert "Auto-recharge" in ada.get(page("credit", org.slug)).content.decode()


class TestCodes:
    def test_a_code_is_made_redeemed_and_switched_off(self, client, people, org, fake):
        client.force_login(people.oda)
        form = {
            "code": "fair 2026",
            "description": "Fair",
            "amount": "7.50",
            "currency": "USD",
            "max_redemptions": "2",
            "valid_until": "",
            "credit_days": "30",
        }
        assert client.post(page("operator_promo_codes"), form).status_code == 302
        assert "FAIR-2026" in client.get(page("operator_promo_codes")).content.decode()
        client.force_login(people.ada)
        before = balance(org.id).credit_nano
        assert client.post(page("promo_redeem", org.slug), {"code": "Fair-2026"}).status_code == 302
        assert balance(org.id).credit_nano == before + 7_500_000_000
        again = client.post(page("promo_redeem", org.slug), {"code": "FAIR-2026"})
        assert (again.status_code, "was redeemed" in again.content.decode()) == (400, True)

    def test_guessing_ends_after_ten_tries(self, ada, org, fake):
        for _ in range(10):
            assert "no such code" in ada.post(page("promo_redeem", org.slug), {"code": "GUESS"}).content.decode()
        assert "Too many wrong codes" in ada.post(page("promo_redeem", org.slug), {"code": "GUESS"}).content.decode()


@pytest.fixture
def invoice(org):
    account = BillingAccount.objects.get(organization=org)
    change_credit_limit(organization_id=org.id, credit_limit_nano=1000 * USD)
    now = datetime(2026, 6, 2, tzinfo=UTC)
    make_calls(account, make_price(), prompt_tokens=250_000_000, cached_tokens=0, completion_tokens=0)
    return finalize_invoice(draft_invoice(organization_id=org.id, period="2026-05", now=now), now=now)


class TestOperator:
    def act(self, client, invoice, name, **fields):
        return client.post(page(f"operator_invoice_{name}", invoice.id), fields, follow=True).content.decode()

    def test_a_bank_transfer_is_booked_once(self, oda, invoice):
        text = oda.get(page("operator_invoice", invoice.id)).content.decode()
        assert "Book a payment" in text
        assert "The payment is booked" in self.act(oda, invoice, "payment", reference="TRX 1")
        assert "cannot become paid" not in self.act(oda, invoice, "payment", reference="TRX 1")
        assert "cannot become paid" in self.act(oda, invoice, "payment", reference="TRX 2")
        assert Invoice.objects.get(id=invoice.id).status == "paid"
        assert balance(invoice.organization_id).receivable_nano == 0

    def test_a_credit_note_has_its_paper_for_operator_and_member_alone(self, client, people, org, invoice):
        client.force_login(people.oda)
        key = key_in(client.get(page("operator_invoice", invoice.id)))
        for _ in range(2):
            said = self.act(client, invoice, "credit", amount="10.00", reason="Goodwill", key=key)
            assert "The credit note is issued" in said
        note = CreditNote.objects.get()
        assert note.number in client.get(page("operator_invoice", invoice.id)).content.decode()
        assert client.get(page("operator_credit_note_pdf", note.id)).content[:5] == b"%PDF-"
        client.force_login(people.ada)
        assert note.number in client.get(page("invoice", org.slug, invoice.id)).content.decode()
        assert client.get(page("credit_note_pdf", org.slug, note.id)).status_code == 200
        client.force_login(people.cyd)
        other = people.cyd.memberships.get().organization
        assert client.get(page("credit_note_pdf", other.slug, note.id)).status_code == 404

    def test_void_and_write_off_need_a_reason_and_keep_it(self, oda, invoice):
        assert "Reason" in self.act(oda, invoice, "void", **{"void-reason": ""})
        assert "is void" in self.act(oda, invoice, "void", **{"void-reason": "wrong address"})
        assert Invoice.objects.get(id=invoice.id).void_reason == "wrong address"
        event = AuditEvent.objects.get(action="invoice.voided")
        assert event.reason == "wrong address"

    def test_a_refund_pays_unspent_credit_back(self, client, people, org, fake):
        client.force_login(people.ada)
        buy(client, org)
        top_up = TopUp.objects.get()
        fake.store.complete_checkout(top_up.session_id)
        client.get(page("top_up", org.slug, top_up.id))
        client.force_login(people.oda)
        key = key_in(client.get(page("operator_money", org.slug)))
        form = {"amount": "20", "reason": "unused", "key": key}
        answer = client.post(page("operator_refund", org.slug, top_up.id), form, follow=True)
        assert "on its way back" in answer.content.decode()
        tasks.send_refund(Refund.objects.get().id)
        assert "Paid back" in client.get(page("operator_money", org.slug)).content.decode()

    def test_fees_tax_and_exemptions_are_set_on_pages(self, oda, org):
        today = timezone.localdate()
        fee = {"name": "Seats", "quantity": "3", "unit_amount": "20.00", "starts_on": today.isoformat()}
        refused = oda.post(page("operator_fee_new", org.slug), fee)
        assert (refused.status_code, "prepaid" in refused.content.decode()) == (400, True)
        change_credit_limit(organization_id=org.id, credit_limit_nano=USD)
        assert oda.post(page("operator_fee_new", org.slug), fee).status_code == 302
        made = RecurringFee.objects.get()
        end = {"ends_on": (today + timedelta(days=1)).isoformat()}
        oda.post(page("operator_fee_end", org.slug, made.id), end)
        assert RecurringFee.objects.get().ends_on == today + timedelta(days=1)
        rate = {"country": "de", "name": "VAT", "percent": "19", "effective_from": "2020-01-01"}
        assert oda.post(page("operator_tax_rates"), rate).status_code == 302
        assert TaxRate.objects.get().percent == 19
        oda.post(page("operator_exemption", org.slug), {"tax_exemption": "Certificate 7"})
        assert BillingAccount.objects.get(organization=org).tax_exemption == "Certificate 7"

    def test_an_event_that_does_not_fit_is_shown_and_worked_again(
        self, oda, fake, django_capture_on_commit_callbacks, monkeypatch
    ):
        worked = []
        monkeypatch.setattr("billing.tasks.work_event.delay", worked.append)
        event = PaymentEvent.objects.create(
            provider="stripe", event_id="evt_1", type="invoice.paid", payload={}, outcome="unmatched", note="who?"
        )
        shown = oda.get(page("operator_events")).content.decode()
        assert "evt_1" in shown
        assert "who?" in shown
        with django_capture_on_commit_callbacks(execute=True):
            oda.post(page("operator_event_replay", event.id))
        assert worked == [event.id]

    def test_members_find_none_of_it(self, ada, org, invoice):
        for url in (
            page("operator_promo_codes"),
            page("operator_tax_rates"),
            page("operator_events"),
            page("operator_money", org.slug),
            page("operator_invoice_annex", invoice.id),
        ):
            assert ada.get(url).status_code == 404
        assert ada.post(page("operator_invoice_void", invoice.id), {"void-reason": "x"}).status_code == 404


class TestExports:
    def ask(self, client, org, **fields):
        form = {"kind": "usage", "file_format": "csv", "period": "2026-05", **fields}
        return client.post(page("exports", org.slug), form)

    def test_a_file_is_asked_for_made_and_downloaded(self, ada, org, fake, invoice):
        assert self.ask(ada, org).status_code == 302
        export = Export.objects.get()
        assert 'hx-trigger="every 1s"' in ada.get(page("exports", org.slug)).content.decode()
        make(export.id)
        assert "hx-trigger" not in ada.get(page("exports", org.slug), headers={"HX-Request": "true"}).content.decode()
        answer = ada.get(page("export_download", org.slug, export.id))
        assert answer["Content-Disposition"] == 'attachment; filename="usage-2026-05.csv"'
        rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
        assert sum(Decimal(row["cost"]) for row in rows) == Decimal(invoice.usage_nano).scaleb(-9)

    def test_a_focus_file_names_its_version(self, ada, org, fake, invoice):
        self.ask(ada, org, kind="focus")
        export = make(Export.objects.get().id)
        answer = ada.get(page("export_download", org.slug, export.id))
        assert answer["X-FOCUS-Version"] == "1.2"
        assert "focus-1.2-2026-05.csv" in answer["Content-Disposition"]

    def test_outsiders_get_no_file_and_odd_orders_say_why(self, client, people, org, fake, invoice):
        client.force_login(people.ada)
        self.ask(client, org)
        export = make(Export.objects.get().id)
        assert "needs a division" in self.ask(client, org, kind="chargeback").content.decode()
        assert "YYYY-MM" in self.ask(client, org, period="May").content.decode()
        client.force_login(people.cyd)
        assert client.get(page("export_download", org.slug, export.id)).status_code == 404
        other = people.cyd.memberships.get().organization
        assert client.get(page("export_download", other.slug, export.id)).status_code == 404


def test_details_take_a_language_and_refuse_an_odd_tax_number(ada, org):
    form = {"email": "a@example.com", "country": "DE", "tax_id": "DE136695977", "language": "de"}
    refused = ada.post(page("billing_details", org.slug), form)
    assert (refused.status_code, "check digits" in refused.content.decode()) == (400, True)
    assert ada.post(page("billing_details", org.slug), {**form, "tax_id": "DE 136 695 976"}).status_code == 302
    account = BillingAccount.objects.get(organization=org)
    assert (account.tax_id, account.language) == ("DE136695976", "de")


def test_another_persons_second_address_gets_no_second_credit(people):
    account = make_account()
    assert balance(people.organization.id).credit_nano == 5 * USD
    assert balance(account.organization_id).credit_nano == 0


class TestRun:
    def test_a_run_goes_on_where_a_worker_died_and_shows_its_progress(self, oda, people, monkeypatch):
        price = make_price("run")
        for _ in range(4):
            make_calls(make_account(credit_limit_nano=USD), price)
        run = operator.start_run(period="2026-05", is_preview=False, actor=people.oda)
        monkeypatch.setattr("billing.invoices.runs._REPORT_EVERY", 1)
        finalize = runs.finalize_invoice

        def die(invoice, **options):
            if Invoice.objects.filter(status="final").count() == 2:
                raise KeyboardInterrupt
            return finalize(invoice, **options)

        with monkeypatch.context() as patch:
            patch.setattr(runs, "finalize_invoice", die)
            with pytest.raises(KeyboardInterrupt):
                operator.execute_run(run.id)
        run.refresh_from_db()
        assert (run.state, run.outcome["finalized"], run.account_total) == ("running", 2, 6)
        shown = oda.get(page("operator_invoices"), {"period": "2026-05"}).content.decode()
        assert "of 6 organizations" in shown
        assert operator.execute_run(run.id) is False
        run.refresh_from_db()
        assert (run.state, run.outcome["finalized"], run.outcome["already_final"]) == ("finished", 4, 0)
        assert Invoice.objects.filter(status="final").count() == 4

    def test_a_long_run_is_cut_into_slices(self, people, monkeypatch):
        for _ in range(3):
            make_calls(make_account(credit_limit_nano=USD), make_price("run"))
        run = operator.start_run(period="2026-05", is_preview=False, actor=people.oda)
        monkeypatch.setattr(operator, "SLICE_S", 0.0)
        slices = 0
        while operator.execute_run(run.id):
            slices += 1
        run.refresh_from_db()
        assert slices >= 3
        assert (run.state, run.outcome["finalized"], run.done) == ("finished", 3, 5)


def test_the_payload_is_shown_without_sending(invoice, capsys):
    call_command("show_payload", invoice.number)
    document = json.loads(capsys.readouterr().out)
    assert [request["path"] for request in document["requests"]][-1] == "/v1/invoices/{invoice.id}/send"
    with pytest.raises(CommandError, match="no invoice NOPE"):
        call_command("show_payload", "NOPE")

    def test_a_file_of_one_key_and_a_report_by_member(self, ada, org, fake, invoice):
        user = User.objects.get(id=int(ada.session["_auth_user_id"]))
        key = issue(project=Project.objects.get(organization=org, is_default=True), name="Mine", actor=user).api_key
        assert "Mine" in ada.get(page("exports", org.slug)).content.decode()
        assert self.ask(ada, org, api_key=str(key.id)).status_code == 302
        assert Export.objects.get().api_key_id == key.id
        assert make(Export.objects.get().id).row_count == 0
        assert self.ask(ada, org, api_key="999999").status_code == 400
        assert self.ask(ada, org, kind="chargeback", group_by="member").status_code == 302
        export = make(Export.objects.latest("id").id)
        answer = ada.get(page("export_download", org.slug, export.id))
        rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))
        assert sum(Decimal(row["total"]) for row in rows) == Decimal(invoice.total_minor).scaleb(-2)


def test_the_billing_details_say_what_the_register_of_tax_numbers_said(ada, org, settings):
    settings.VIES_URL = "https://register.example/rest-api"
    number = "NL004495445B01"
    BillingAccount.objects.filter(organization=org).update(country="NL", tax_id=number)
    details = page("billing_details", org.slug)
    assert "register of the European Union" not in ada.get(details).content.decode()
    for is_valid, text in ((True, f"{number} is in the register"), (False, f"does not know {number}")):
        TaxIdCheck.objects.create(organization=org, tax_id=number, is_valid=is_valid, checked_at=timezone.now())
        assert text in ada.get(details).content.decode()
