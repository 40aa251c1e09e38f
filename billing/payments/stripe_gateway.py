"""Stripe, through its official client: the only file that imports it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import stripe
from django.core.exceptions import ImproperlyConfigured

from billing.errors import EventRefused, PaymentProviderError
from billing.payments import payloads, stripe_facts
from billing.payments.gateway import (
    BilledCreditNote,
    BilledInvoice,
    CardCharge,
    CheckoutOrder,
    Fact,
    OpenedCheckout,
    Payer,
    ProviderEvent,
    PushedInvoice,
    RefundFact,
    RefundOrder,
    Subject,
    TopUpFact,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Marked = TypeVar("Marked", bound=stripe.StripeObject)


class StripeGateway:
    """`webhook_secrets` may be several while one is rotated. `api_base` sends the calls elsewhere, for tests.

    Each step looks for its result by our id first and creates with our key second: keys expire after a day.
    """

    name = "stripe"

    def __init__(self, *, secret_key: str, webhook_secrets: Sequence[str], api_base: str = "") -> None:
        if not webhook_secrets or any(not secret.strip() for secret in webhook_secrets):
            raise ImproperlyConfigured("STRIPE_WEBHOOK_SECRET is empty: anyone could sign events with an empty secret.")
        self._secrets = tuple(webhook_secrets)
        bases: dict[str, str] = {"api": api_base} if api_base else {}
        # Retries are ours (the task's), so that none happens inside a call that looks slow.
        self._client = stripe.StripeClient(
            secret_key,
            base_addresses=cast(Any, bases),  # the client's TypedDict of addresses
            stripe_version=payloads.API_VERSION,
            max_network_retries=0,
        )

    # Customers ----------------------------------------------------------------------------------
    def _customer(self, payer: Payer) -> str:
        """The payer at Stripe, with today's address and tax number."""
        if payer.customer_id:
            self._refresh_customer(payer)
            return payer.customer_id
        query = f"metadata['organization_id']:'{payer.organization_id}'"
        found = _call(lambda: self._client.v1.customers.search({"query": query, "limit": 1}))
        if found.data:
            return found.data[0].id
        params = cast(Any, payloads.customer_params(payer))
        return _call(lambda: self._client.v1.customers.create(params, _options(payloads.customer_key(payer)))).id

    def _refresh_customer(self, payer: Payer) -> None:
        params = cast(Any, payloads.customer_update(payer))
        _call(lambda: self._client.v1.customers.update(payer.customer_id, params))
        if not payer.tax_id_type:
            return
        listed = _call(lambda: list(self._client.v1.customers.tax_ids.list(payer.customer_id).auto_paging_iter()))
        if any(found.value == payer.tax_id for found in listed):
            return
        tax_id = cast(Any, {"type": payer.tax_id_type, "value": payer.tax_id})
        key = f"tax-id-{payer.organization_id}-{payer.tax_id}"
        _call(lambda: self._client.v1.customers.tax_ids.create(payer.customer_id, tax_id, _options(key)))

    def portal_link(self, payer: Payer, return_url: str) -> str:
        customer_id = self._customer(payer)
        session = _call(
            lambda: self._client.v1.billing_portal.sessions.create({"customer": customer_id, "return_url": return_url})
        )
        return session.url

    # Invoices -----------------------------------------------------------------------------------
    def push_invoice(self, invoice: BilledInvoice) -> PushedInvoice:
        customer_id = self._customer(invoice.payer)
        pushed = self._invoice(invoice, customer_id)
        if pushed.status == "draft":
            self._items(invoice, customer_id, pushed.id)
            pushed = _call(
                lambda: self._client.v1.invoices.finalize_invoice(
                    pushed.id, {"auto_advance": False}, _options(payloads.step_key(invoice, "finalize"))
                )
            )
        if pushed.total != invoice.total_minor:
            raise PaymentProviderError(
                f"Stripe totals invoice {invoice.number} at {pushed.total} and we at {invoice.total_minor}; "
                f"void {pushed.id} at Stripe and look at its items.",
                is_retryable=False,
            )
        if pushed.status == "open":
            pushed = _call(
                lambda: self._client.v1.invoices.send_invoice(
                    pushed.id, {}, _options(payloads.step_key(invoice, "send"))
                )
            )
        return PushedInvoice(pushed.id, customer_id, pushed.hosted_invoice_url or "")

    def _invoice(self, invoice: BilledInvoice, customer_id: str) -> stripe.Invoice:
        # A list, unlike a search, shows what was created a moment ago.
        listed = _call(lambda: list(self._client.v1.invoices.list({"customer": customer_id}).auto_paging_iter()))
        for candidate in listed:
            if _mark(candidate, "invoice_id") == str(invoice.invoice_id) and candidate.status != "void":
                return candidate
        params = cast(Any, payloads.invoice_params(invoice, customer_id))
        return _call(lambda: self._client.v1.invoices.create(params, _options(payloads.step_key(invoice, "create"))))

    def _items(self, invoice: BilledInvoice, customer_id: str, external_id: str) -> None:
        listed = _call(
            lambda: list(self._client.v1.invoice_items.list({"invoice": external_id, "limit": 100}).auto_paging_iter())
        )
        present = {_mark(item, "step") for item in listed}
        for step, params in payloads.item_steps(invoice, customer_id, external_id):
            if step not in present:
                self._create_item(params, payloads.step_key(invoice, step))

    def _create_item(self, params: payloads.Params, key: str) -> None:
        _call(lambda: self._client.v1.invoice_items.create(cast(Any, params), _options(key)))

    def _status(self, external_id: str) -> str:
        return str(_call(lambda: self._client.v1.invoices.retrieve(external_id)).status)

    def void_invoice(self, external_id: str) -> None:
        if self._status(external_id) != "void":
            key = payloads.void_request(external_id).idempotency_key
            _call(lambda: self._client.v1.invoices.void_invoice(external_id, {}, _options(key)))

    def give_up_invoice(self, external_id: str) -> None:
        if self._status(external_id) == "open":
            key = payloads.give_up_request(external_id).idempotency_key
            _call(lambda: self._client.v1.invoices.mark_uncollectible(external_id, {}, _options(key)))

    def pay_invoice(self, external_id: str, payment_method_id: str, key: str) -> None:
        if self._status(external_id) != "open":
            return
        params = cast(Any, {"payment_method": payment_method_id, "off_session": True})
        _call(lambda: self._client.v1.invoices.pay(external_id, params, _options(key)))

    def push_credit_note(self, note: BilledCreditNote) -> str:
        listed = _call(
            lambda: list(self._client.v1.credit_notes.list({"invoice": note.invoice_external_id}).auto_paging_iter())
        )
        if found := _marked(listed, "credit_note_id", note.credit_note_id):
            return found.id
        request = payloads.credit_note_request(note, note.invoice_external_id)
        params, options = cast(Any, request.params), _options(request.idempotency_key)
        return _call(lambda: self._client.v1.credit_notes.create(params, options)).id

    # Credit -------------------------------------------------------------------------------------
    def open_checkout(self, order: CheckoutOrder) -> OpenedCheckout:
        customer_id = self._customer(order.payer)
        sessions = self._client.v1.checkout.sessions
        listed = _call(lambda: list(sessions.list({"customer": customer_id}).auto_paging_iter()))
        session = _marked(listed, "top_up_id", order.top_up_id)
        if session is None:
            params = cast(Any, payloads.checkout_params(order, customer_id))
            session = _call(lambda: sessions.create(params, _options(f"top-up-{order.top_up_id}")))
        return OpenedCheckout(session.id, customer_id, session.url or "")

    def charge_card(self, charge: CardCharge) -> TopUpFact:
        customer_id = self._customer(charge.payer)
        intents = self._client.v1.payment_intents
        listed = _call(lambda: list(intents.list({"customer": customer_id}).auto_paging_iter()))
        found = _marked(listed, "top_up_id", charge.top_up_id)
        if found is not None:
            return stripe_facts.payment_fact(found.to_dict())
        params = cast(Any, payloads.charge_params(charge, customer_id))
        try:
            made = _call(lambda: intents.create(params, _options(f"top-up-{charge.top_up_id}")))
        except _CardRefused as refusal:
            return TopUpFact(
                charge.top_up_id, "failed", "", refusal.payment_id, charge.total_minor, charge.currency,
                failure=str(refusal),
            )  # fmt: skip
        return stripe_facts.payment_fact(made.to_dict())

    def refund(self, order: RefundOrder) -> RefundFact:
        refunds = self._client.v1.refunds
        listed = _call(lambda: list(refunds.list({"payment_intent": order.payment_id}).auto_paging_iter()))
        found = _marked(listed, "refund_id", order.refund_id)
        if found is None:
            params = cast(Any, payloads.refund_params(order))
            found = _call(lambda: refunds.create(params, _options(f"refund-{order.refund_id}")))
        return stripe_facts.refund_fact(found.to_dict())

    # Events -------------------------------------------------------------------------------------
    def read_event(self, body: bytes, signature: str) -> ProviderEvent:
        if not any(_is_signed(body, signature, secret) for secret in self._secrets):
            raise EventRefused("The event's signature fits none of our secrets, or it is too old.")
        try:
            payload = json.loads(body)
        except ValueError:
            raise EventRefused("The event's body is no JSON.") from None
        try:
            event = ProviderEvent(self.name, str(payload["id"]), str(payload["type"]), payload)
            self.subject_of(event.type, payload)
        except (KeyError, TypeError) as error:
            raise EventRefused(f"The event lacks what every event of its type has: {error}.") from None
        return event

    def subject_of(self, event_type: str, payload: dict[str, Any]) -> Subject | None:
        return stripe_facts.subject_of(event_type, payload)

    def look_up(self, subject: Subject) -> Fact | None:
        kind, identifier = subject
        v1 = self._client.v1
        try:
            if kind == "invoice":
                return stripe_facts.invoice_fact(_call(lambda: v1.invoices.retrieve(identifier)).to_dict())
            if kind == "checkout":
                session = _call(lambda: v1.checkout.sessions.retrieve(identifier, {"expand": ["payment_intent"]}))
                return stripe_facts.checkout_fact(session.to_dict())
            if kind == "payment":
                return stripe_facts.payment_fact(_call(lambda: v1.payment_intents.retrieve(identifier)).to_dict())
            return stripe_facts.refund_fact(_call(lambda: v1.refunds.retrieve(identifier)).to_dict())
        except _Missing:
            return None


class _Missing(PaymentProviderError):
    """Stripe does not have the object."""


class _CardRefused(PaymentProviderError):
    def __init__(self, message: str, payment_id: str) -> None:
        super().__init__(message, is_retryable=False)
        self.payment_id = payment_id


def _is_signed(body: bytes, signature: str, secret: str) -> bool:
    try:
        stripe.WebhookSignature.verify_header(body, signature, secret, stripe.Webhook.DEFAULT_TOLERANCE)
    except (stripe.SignatureVerificationError, UnicodeDecodeError):
        return False
    return True


def _mark(found: stripe.StripeObject, key: str) -> str:
    """What we wrote into the object's metadata under `key`, else nothing."""
    metadata = getattr(found, "metadata", None)
    return str(metadata[key]) if metadata and key in metadata else ""


def _marked(listed: Iterable[Marked], key: str, our_id: int) -> Marked | None:
    return next((found for found in listed if _mark(found, key) == str(our_id)), None)


def _options(key: str) -> Any:  # the client's RequestOptions
    return {"idempotency_key": key}


def _call(request: Callable[[], T]) -> T:
    try:
        return request()
    except (stripe.APIConnectionError, stripe.RateLimitError) as error:
        raise PaymentProviderError(f"Stripe did not answer: {error}", is_retryable=True) from error
    except stripe.CardError as error:
        payment = error.error.payment_intent if error.error else None
        raise _CardRefused(error.user_message or str(error), payment.id if payment else "") from error
    except stripe.StripeError as error:
        status = error.http_status or 0
        if status == 404:
            raise _Missing(f"Stripe does not have it: {error}", is_retryable=False) from error
        # 409: another call with this key is under way.
        raise PaymentProviderError(f"Stripe refused: {error}", is_retryable=status >= 500 or status == 409) from error
