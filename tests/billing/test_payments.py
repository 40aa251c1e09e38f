"""Invoices reach Stripe once and exactly, whatever breaks on the way; what Stripe says was paid is booked once."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import stripe
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Sum
from django.test import Client
from django.urls import reverse

from billing import tasks
from billing.accounts.services import change_address
from billing.errors import EventRefused, PaymentProviderError
from billing.invoices.models import Invoice
from billing.invoices.services import draft_invoice, finalize_invoice, void_invoice
from billing.ledger import audit
from billing.ledger.models import LedgerEntry
from billing.ledger.selectors import balance
from billing.ledger.signals import balance_changed
from billing.payments import events, payloads, services
from billing.payments.configuration import configured_gateway
from billing.payments.file_gateway import FileGateway
from billing.payments.models import InvoicePush, Payment, PaymentEvent
from billing.payments.stripe_gateway import StripeGateway
from tests.billing.concurrency import at_once
from tests.factories.billing import USD, make_account, make_calls, make_price

pytestmark = pytest.mark.django_db

IN_JUNE = datetime(2026, 6, 2, tzinfo=UTC)
# 100 000 000 cached tokens at $0.10, 100 at $0.40 and 100 at $2.03: one line is whole cents, the others are rounded.
BIG = {"prompt_tokens": 100_000_100, "cached_tokens": 100_000_000, "completion_tokens": 5_000}


def issue(account):
    draft = draft_invoice(organization_id=account.organization_id, period="2026-05", now=IN_JUNE)
    return finalize_invoice(draft, now=IN_JUNE)


@pytest.fixture
def invoice():
    account = make_account(credit_nano=2 * USD, credit_limit_nano=1000 * USD)
    change_address(
        organization_id=account.organization_id,
        fields={"legal_name": "Ada GmbH", "address_line1": "Ring 1", "city": "Wien", "country": "AT"},
    )
    make_calls(account, make_price(), **BIG)
    return issue(account)


def only(fake, kind):
    [found] = fake.store.all(kind)
    return found


class TestPush:
    def test_the_invoice_stands_at_stripe_as_it_stands_here(self, fake, gateway, invoice):
        push = services.push_invoice(invoice.id, gateway=gateway)
        customer, pushed = only(fake, "customer"), only(fake, "invoice")
        assert (customer["name"], customer["address"]["city"]) == ("Ada GmbH", "Wien")
        assert (pushed["status"], pushed["number"], pushed["total"]) == ("open", invoice.number, invoice.total_minor)
        assert pushed["auto_advance"] is False
        assert pushed["due_date"] == int(invoice.due_at.timestamp())
        items = {item["metadata"]["step"]: item for item in fake.store.items_of(pushed["id"])}
        assert [items[step]["amount"] for step in ("line-1", "line-2", "line-3", "credit")] == [0, 1000, 1, -200]
        assert (items["line-2"]["quantity_decimal"], items["line-2"]["unit_amount_decimal"]) == ("100", "10")
        assert "quantity_decimal" not in items["line-3"]
        assert (push.state, push.external_id, push.attempts) == ("pushed", pushed["id"], 1)
        assert push.hosted_url
        assert [event["type"] for event in fake.store.events][-1] == "invoice.sent"
        account = invoice.organization.billing_account
        assert account.stripe_customer_id == customer["id"]

    def test_a_repeat_sends_nothing(self, fake, gateway, invoice):
        services.push_invoice(invoice.id, gateway=gateway)
        sent = len(fake.api.received)
        services.push_invoice(invoice.id, gateway=gateway)
        assert len(fake.api.received) == sent

    def test_a_prepaid_invoice_is_paid_at_once(self, fake, gateway, tell):
        account = make_account(credit_nano=50 * USD)
        make_calls(account, make_price(), **BIG)
        invoice = issue(account)
        services.push_invoice(invoice.id, gateway=gateway)
        assert only(fake, "invoice")["status"] == "paid"
        [event] = fake.events("invoice.paid")
        assert tell(event) == "applied"
        assert Invoice.objects.get(id=invoice.id).status == "paid"
        assert not Payment.objects.exists()

    @pytest.mark.parametrize("fault", [{"kind": "error"}, {"kind": "error", "status": 429}, {"kind": "lost_answer"}])
    @pytest.mark.parametrize(
        "step",
        [
            {"method": "GET", "path": "/v1/customers/search"},
            {"path": "/v1/customers"},
            {"method": "GET", "path": "/v1/invoices"},
            {"path": "/v1/invoices"},
            {"path": "/v1/invoiceitems", "skip": 1},
            {"path": "/v1/invoices/.*/finalize"},
            {"path": "/v1/invoices/.*/send"},
        ],
        ids=lambda step: step["path"].rpartition("/")[2],
    )
    def test_a_fault_at_any_step_is_retried_to_one_invoice(self, fake, gateway, invoice, step, fault):
        fake.fail(**step, **fault)
        with pytest.raises(PaymentProviderError) as failed:
            services.push_invoice(invoice.id, gateway=gateway)
        assert failed.value.is_retryable
        push = InvoicePush.objects.get(invoice=invoice)
        assert (push.state, bool(push.last_error)) == ("failed", True)
        assert services.invoices_to_push() == [invoice.id]
        push = services.push_invoice(invoice.id, gateway=gateway)
        assert (push.state, push.attempts, push.last_error) == ("pushed", 2, "")
        only(fake, "customer")
        pushed = only(fake, "invoice")
        assert (pushed["status"], pushed["total"]) == ("open", invoice.total_minor)
        assert len(fake.store.items_of(pushed["id"])) == 4
        assert services.invoices_to_push() == []

    def test_after_the_keys_expired_our_id_is_found_again(self, fake, gateway, invoice):
        fake.fail(path="/v1/invoices/.*/finalize", kind="error")
        with pytest.raises(PaymentProviderError):
            services.push_invoice(invoice.id, gateway=gateway)
        fake.api._answers.clear()
        services.push_invoice(invoice.id, gateway=gateway)
        only(fake, "customer")
        assert only(fake, "invoice")["total"] == invoice.total_minor

    def test_another_total_at_stripe_is_no_success(self, fake, gateway, invoice):
        fake.fail(path="/v1/invoices/.*/finalize", kind="error")
        with pytest.raises(PaymentProviderError):
            services.push_invoice(invoice.id, gateway=gateway)
        client = stripe.StripeClient(fake.secret_key, base_addresses={"api": fake.url})
        pushed = only(fake, "invoice")
        client.v1.invoice_items.create(
            {"customer": pushed["customer"], "invoice": pushed["id"], "currency": "usd", "amount": 1}
        )
        with pytest.raises(PaymentProviderError, match="Stripe totals invoice") as failed:
            services.push_invoice(invoice.id, gateway=gateway)
        assert not failed.value.is_retryable

    def test_a_refused_key_is_not_retried(self, fake, invoice):
        wrong = StripeGateway(secret_key="sk_test_wrong", webhook_secrets=["whsec_x"], api_base=fake.url)
        with pytest.raises(PaymentProviderError) as failed:
            services.push_invoice(invoice.id, gateway=wrong)
        assert not failed.value.is_retryable

    def test_drafts_and_void_invoices_are_not_pushed(self, gateway, invoice):
        void_invoice(invoice, reason="test")
        assert services.push_invoice(invoice.id, gateway=gateway) is None
        draft = draft_invoice(organization_id=invoice.organization_id, period="2026-05", now=IN_JUNE)
        assert services.push_invoice(draft.id, gateway=gateway) is None

    def test_many_lines_are_grouped_past_stripes_limit(self, fake, gateway):
        account = make_account(credit_limit_nano=1000 * USD)
        for number in range(90):
            make_calls(account, make_price(f"model-{number}"), **BIG)
        invoice = issue(account)
        assert invoice.lines.count() == 270
        services.push_invoice(invoice.id, gateway=gateway)
        pushed = only(fake, "invoice")
        assert pushed["total"] == invoice.total_minor
        assert len(fake.store.items_of(pushed["id"])) == payloads.LINE_LIMIT + 1

    def test_the_version_is_the_clients(self):
        assert stripe.api_version == payloads.API_VERSION


class TestFiles:
    def test_the_file_holds_what_stripe_would_get(self, fake, gateway, invoice, tmp_path):
        push = services.push_invoice(invoice.id, gateway=FileGateway(tmp_path))
        document = json.loads((tmp_path / push.external_id).read_text())
        assert (push.provider, document["api_version"]) == ("file", payloads.API_VERSION)
        services.push_invoice(invoice.id, gateway=gateway)
        customer, pushed = only(fake, "customer")["id"], only(fake, "invoice")["id"]
        sent = [
            (request.path, request.idempotency_key, as_text(request.params))
            for request in fake.api.received
            if request.method == "POST"
        ]
        written = [
            (request["path"].replace("{invoice.id}", pushed), request["idempotency_key"], as_text(request["params"]))
            for request in document["requests"]
        ]
        filled = json.loads(json.dumps(written).replace("{customer.id}", customer).replace("{invoice.id}", pushed))
        assert [list(request) for request in sent] == filled

    def test_without_a_key_files_are_the_gateway_and_no_event_is_taken(self, settings, tmp_path):
        settings.STRIPE_SECRET_KEY, settings.VAR_DIR = "", tmp_path
        assert configured_gateway().name == "file"
        with pytest.raises(EventRefused, match="STRIPE_SECRET_KEY"):
            events.receive_event(b"{}", "")

    def test_with_a_key_stripe_is(self, settings):
        settings.STRIPE_SECRET_KEY, settings.STRIPE_WEBHOOK_SECRETS = "sk_test_x", ["whsec_x"]
        assert configured_gateway().name == "stripe"


@pytest.fixture
def configured(fake, settings):
    """The product speaks to the fake; the path of its webhook."""
    settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE = fake.secret_key, fake.url
    settings.STRIPE_WEBHOOK_SECRETS = [fake.webhook_secret]
    return reverse("api:stripe_webhook")


def as_text(value):
    if isinstance(value, dict):
        return {key: as_text(inner) for key, inner in value.items()}
    return str(value)


def signed(fake, event, **options):
    body = json.dumps(event, default=str).encode()
    return body, fake.sign(body, **options)


@pytest.fixture
def paid(fake, gateway, invoice):
    """The events of a paid invoice: paid and payment_succeeded."""
    services.push_invoice(invoice.id, gateway=gateway)
    fake.store.pay(only(fake, "invoice")["id"])
    return SimpleNamespace(
        invoice=invoice,
        paid=fake.events("invoice.paid")[0],
        succeeded=fake.events("invoice.payment_succeeded")[0],
        finalized=fake.events("invoice.finalized")[0],
        nano=invoice.total_minor * 10_000_000,
    )


class TestEvents:
    def test_a_payment_settles_the_receivable(self, fake, gateway, paid, tell):
        organization_id = paid.invoice.organization_id
        assert balance(organization_id).receivable_nano == -paid.nano
        assert tell(paid.paid) == "applied"
        assert balance(organization_id).receivable_nano == 0
        invoice = Invoice.objects.get(id=paid.invoice.id)
        assert (invoice.status, invoice.paid_at is not None) == ("paid", True)
        entries = LedgerEntry.objects.filter(transaction__kind="payment").values_list("account__kind", "amount_nano")
        assert dict(entries) == {"receivable": paid.nano, "cash": -paid.nano}
        assert audit.compare() == []

    def test_the_second_event_of_a_payment_books_nothing(self, fake, gateway, paid, tell):
        for event, outcome in ((paid.succeeded, "applied"), (paid.paid, "repeated"), (paid.paid, "repeated")):
            assert tell(event) == outcome
        assert Payment.objects.count() == 1
        assert PaymentEvent.objects.count() == 2

    def test_other_types_are_kept_and_ignored(self, fake, gateway, paid, tell):
        unknown = {**paid.finalized, "id": "evt_new", "type": "something.new"}
        for event in (paid.finalized, unknown, unknown):
            tell(event)
        assert list(PaymentEvent.objects.order_by("id").values_list("type", "outcome")) == [
            ("invoice.finalized", "ignored"),
            ("something.new", "ignored"),
        ]
        assert PaymentEvent.objects.first().payload["data"]["object"]["number"] == paid.invoice.number

    def test_an_event_is_kept_before_it_is_worked_and_a_failure_is_tried_again(self, fake, gateway, paid):
        kept = events.receive_event(*signed(fake, paid.paid), gateway=gateway)
        assert (kept.outcome, Payment.objects.count()) == ("received", 0)
        fake.fail(method="GET", path="/v1/invoices/.*")
        with pytest.raises(PaymentProviderError):
            events.work_event(kept.id, gateway=gateway)
        kept.refresh_from_db()
        assert (kept.outcome, kept.attempts, bool(kept.note)) == ("failed", 1, True)
        assert events.events_to_work(now=kept.received_at + timedelta(minutes=5)) == [kept.id]
        assert events.work_event(kept.id, gateway=gateway) == "applied"
        assert Payment.objects.count() == 1

    def test_a_failed_booking_leaves_neither_mark_nor_effect(self, fake, gateway, paid, monkeypatch, tell):
        kept = events.receive_event(*signed(fake, paid.paid), gateway=gateway)

        def fail(*args, **kwargs):
            raise RuntimeError("the database went away")

        with monkeypatch.context() as patch:
            patch.setattr("billing.payments.booking.mark_paid", fail)
            with pytest.raises(RuntimeError):
                events.work_event(kept.id, gateway=gateway)
        assert not Payment.objects.exists()
        assert PaymentEvent.objects.get().outcome == "failed"
        assert tell(paid.paid) == "applied"
        assert Payment.objects.count() == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"amount_paid": 1},
            {"currency": "eur"},
            {"metadata": {"invoice_id": "999999"}},
        ],
    )
    def test_what_does_not_fit_is_kept_for_a_person(self, fake, gateway, paid, change, caplog, tell):
        only(fake, "invoice").update(change)
        assert tell(paid.paid) == "unmatched"
        assert Invoice.objects.get(id=paid.invoice.id).status == "sent"
        assert PaymentEvent.objects.get().note
        assert "payment_unmatched" in caplog.text
        assert events.open_event_count() == 1

    def test_what_the_event_says_is_not_believed(self, fake, gateway, paid, tell):
        forged = {**paid.paid["data"]["object"], "amount_paid": 1, "currency": "eur"}
        event = {**paid.paid, "data": {"object": forged}}
        assert tell(event) == "applied"
        assert Payment.objects.get().amount_minor == paid.invoice.total_minor

    def test_an_invoice_that_stripe_lost_is_for_a_person(self, fake, gateway, paid, tell):
        event = {**paid.paid, "data": {"object": {**paid.paid["data"]["object"], "id": "in_other"}}}
        assert tell(event) == "unmatched"

    def test_a_payment_of_a_void_invoice_is_for_a_person_who_replays_it(self, fake, gateway, paid, tell):
        void_invoice(paid.invoice, reason="test")
        assert tell(paid.paid) == "unmatched"
        event = PaymentEvent.objects.get()
        again = issue(paid.invoice.organization.billing_account)
        only(fake, "invoice")["metadata"]["invoice_id"] = str(again.id)
        assert events.work_event(event.id, gateway=gateway) == "applied"
        assert Invoice.objects.get(id=again.id).status == "paid"

    def test_an_event_without_our_id_is_found_by_stripes(self, fake, gateway, paid, tell):
        only(fake, "invoice")["metadata"] = {}
        assert tell(paid.paid) == "applied"

    def test_events_that_come_before_their_time_say_nothing_yet(self, fake, gateway, paid, tell):
        only(fake, "invoice").update(status="open", amount_paid=0)
        assert tell(paid.succeeded) == "ignored"
        only(fake, "invoice").update(status="paid", amount_paid=paid.invoice.total_minor)
        assert tell(paid.paid) == "applied"

    def test_listeners_hear_of_the_payment(self, fake, gateway, paid, django_capture_on_commit_callbacks):
        heard = []

        def listen(**signal):
            heard.append(signal["delta_nano"])

        kept = events.receive_event(*signed(fake, paid.paid), gateway=gateway)
        balance_changed.connect(listen)
        try:
            with django_capture_on_commit_callbacks(execute=True):
                events.work_event(kept.id, gateway=gateway)
        finally:
            balance_changed.disconnect(listen)
        assert heard == [paid.nano]


class TestSignatures:
    def test_any_of_two_secrets_is_good_during_rotation(self, fake, paid):
        rotating = StripeGateway(secret_key=fake.secret_key, webhook_secrets=["whsec_new", fake.webhook_secret])
        for secret in ("whsec_new", fake.webhook_secret):
            event = {**paid.finalized, "id": f"evt_{secret}"}
            assert events.receive_event(*signed(fake, event, secret=secret), gateway=rotating).outcome == "ignored"

    @pytest.mark.parametrize("secrets", [[], [""], ["  "], ["whsec_x", ""]])
    def test_an_empty_secret_does_not_start(self, secrets):
        with pytest.raises(ImproperlyConfigured, match="STRIPE_WEBHOOK_SECRET is empty"):
            StripeGateway(secret_key="sk_test_x", webhook_secrets=secrets)

    def test_forgeries_are_refused(self, fake, gateway, paid):
        body, good = signed(fake, paid.paid)
        forged = [
            (body, signed(fake, paid.paid, secret="")[1]),
            (body, signed(fake, paid.paid, secret="whsec_other")[1]),
            (body.replace(b"invoice.paid", b"invoice.pAid"), good),
            (body, signed(fake, paid.paid, at=int(time.time()) - 3600)[1]),
            (body, ""),
            (body, "t=1"),
        ]
        for altered, signature in forged:
            with pytest.raises(EventRefused, match="signature"):
                events.receive_event(altered, signature, gateway=gateway)
        assert not PaymentEvent.objects.exists()

    @pytest.mark.parametrize("body", [b"[]", b"{}", b'{"id": "evt_1", "type": "invoice.paid", "data": {"object": {}}}'])
    def test_signed_nonsense_is_refused(self, fake, gateway, body):
        with pytest.raises(EventRefused):
            events.receive_event(body, fake.sign(body), gateway=gateway)

    def test_signed_bytes_that_are_no_json_are_refused(self, fake, gateway):
        with pytest.raises(EventRefused, match="no JSON"):
            events.receive_event(b"{", fake.sign(b"{"), gateway=gateway)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"STRIPE_SECRET_KEY": "sk_test_x"}, "STRIPE_WEBHOOK_SECRET must be set"),
        ({"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_WEBHOOK_SECRET": " , "}, "STRIPE_WEBHOOK_SECRET must be set"),
        ({"STRIPE_SECRET_KEY": "rk_live_x", "STRIPE_WEBHOOK_SECRET": "whsec_x"}, "set STRIPE_ALLOW_LIVE=1 too"),
    ],
)
def test_the_product_does_not_start_without_a_secret_or_by_chance_on_a_live_key(environment, message):
    ran = subprocess.run(
        [sys.executable, "-c", "import config.settings"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert message in ran.stderr


class TestWebhookView:
    @pytest.fixture
    def post(self, configured):
        def send(body, signature):
            return Client(enforce_csrf_checks=True).post(
                configured, body, content_type="application/json", headers={"Stripe-Signature": signature}
            )

        return send

    def test_an_event_is_kept_and_answered_and_its_work_enqueued(
        self, fake, paid, post, django_capture_on_commit_callbacks, monkeypatch
    ):
        enqueued = []
        monkeypatch.setattr("billing.tasks.work_event.delay", enqueued.append)
        for _ in range(2):
            with django_capture_on_commit_callbacks(execute=True):
                answer = post(*signed(fake, paid.paid))
            assert (answer.status_code, json.loads(answer.content)) == (200, {"outcome": "received"})
        [event] = PaymentEvent.objects.all()
        assert enqueued == [event.id, event.id]
        tasks.work_event(event.id)
        assert Invoice.objects.get(id=paid.invoice.id).status == "paid"

    def test_a_forgery_is_a_400_that_says_why(self, fake, paid, post):
        answer = post(signed(fake, paid.paid)[0], "t=1,v1=00")
        assert answer.status_code == 400
        assert json.loads(answer.content)["error"]["code"] == "event_refused"

    def test_only_posts_are_taken(self, configured):
        assert Client().get(configured).status_code == 405


@pytest.mark.django_db(transaction=True)
def test_one_event_delivered_and_worked_many_times_at_once_is_booked_once(fake, configured, live_server, monkeypatch):
    monkeypatch.setattr("billing.tasks.work_event.delay", lambda event_id: None)
    monkeypatch.setattr("billing.tasks.push_invoice.delay", lambda invoice_id: None)
    account = make_account(credit_limit_nano=1000 * USD)
    make_calls(account, make_price(), **BIG)
    invoice = issue(account)
    services.push_invoice(invoice.id)
    fake.store.pay(only(fake, "invoice")["id"])
    [paid], [succeeded] = fake.events("invoice.paid"), fake.events("invoice.payment_succeeded")
    url = live_server.url + configured
    statuses = at_once(*[lambda e=event: fake.deliver(e, url) for event in [paid] * 5 + [succeeded] * 3])
    assert statuses == [200] * 8
    kept = list(PaymentEvent.objects.values_list("id", flat=True))
    assert len(kept) == 2
    outcomes = at_once(*[lambda i=event_id: events.work_event(i) for event_id in kept * 3])
    assert sorted(set(outcomes)) == ["applied", "repeated"]
    assert Invoice.objects.get(id=invoice.id).status == "paid"
    assert Payment.objects.count() == 1
    assert LedgerEntry.objects.filter(account__kind="cash").aggregate(t=Sum("amount_nano"))["t"] == (
        -invoice.total_minor * 10_000_000
    )


@pytest.mark.parametrize(("key", "ids"), [("", []), ("rk_live_x", []), ("sk_test_x", ["billing.W001"])])
def test_a_full_key_is_warned_of(settings, key, ids):
    settings.STRIPE_SECRET_KEY = key
    assert [found.id for found in run_checks(tags=["security"]) if found.id.startswith("billing.")] == ids
