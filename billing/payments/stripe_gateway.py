"""Stripe, through its official client: the only file that imports it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import stripe
from django.core.exceptions import ImproperlyConfigured

from billing.errors import EventRefused, PaymentProviderError
from billing.payments import payloads
from billing.payments.gateway import BilledInvoice, PaidInvoice, ProviderEvent, PushedInvoice

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Both tell of the same payment; whichever comes first is booked.
_PAID_EVENTS = frozenset({"invoice.paid", "invoice.payment_succeeded"})


class StripeGateway:
    """`webhook_secrets` may be several while one is rotated. `api_base` sends the calls elsewhere, for tests."""

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

    def push_invoice(self, invoice: BilledInvoice) -> PushedInvoice:
        """Each step looks for its result by our id first and creates with our key second: keys expire after a day."""
        customer_id = invoice.customer_id or self._customer(invoice)
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

    def _customer(self, invoice: BilledInvoice) -> str:
        query = f"metadata['organization_id']:'{invoice.organization_id}'"
        found = _call(lambda: self._client.v1.customers.search({"query": query, "limit": 1}))
        if found.data:
            return found.data[0].id
        params = cast(Any, payloads.customer_params(invoice))
        created = _call(lambda: self._client.v1.customers.create(params, _options(payloads.customer_key(invoice))))
        return created.id

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

    def read_event(self, body: bytes, signature: str) -> ProviderEvent:
        if not any(_is_signed(body, signature, secret) for secret in self._secrets):
            raise EventRefused("The event's signature fits none of our secrets, or it is too old.")
        try:
            payload = json.loads(body)
        except ValueError:
            raise EventRefused("The event's body is no JSON.") from None
        return _read(payload)


def _is_signed(body: bytes, signature: str, secret: str) -> bool:
    try:
        stripe.WebhookSignature.verify_header(body, signature, secret, stripe.Webhook.DEFAULT_TOLERANCE)
    except (stripe.SignatureVerificationError, UnicodeDecodeError):
        return False
    return True


def _read(payload: dict[str, Any]) -> ProviderEvent:
    try:
        kind, found = str(payload["type"]), payload["data"]["object"]
        return ProviderEvent(
            provider=StripeGateway.name,
            event_id=str(payload["id"]),
            type=kind,
            payload=payload,
            paid=_paid(found) if kind in _PAID_EVENTS else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EventRefused(f"The event lacks what every event of its type has: {error}.") from None


def _paid(invoice: dict[str, Any]) -> PaidInvoice:
    ours = (invoice.get("metadata") or {}).get("invoice_id", "")
    return PaidInvoice(
        external_id=str(invoice["id"]),
        invoice_id=int(ours) if str(ours).isdigit() else None,
        # An invoice is paid once, and both events about it carry its id.
        payment_id=str(invoice["id"]),
        amount_minor=int(invoice["amount_paid"]),
        currency=str(invoice["currency"]).upper(),
    )


def _mark(found: stripe.Invoice | stripe.InvoiceItem, key: str) -> str:
    """What we wrote into the object's metadata under `key`, else nothing."""
    metadata = found.metadata
    return str(metadata[key]) if metadata and key in metadata else ""


def _options(key: str) -> Any:  # the client's RequestOptions
    return {"idempotency_key": key}


def _call(request: Callable[[], T]) -> T:
    try:
        return request()
    except (stripe.APIConnectionError, stripe.RateLimitError) as error:
        raise PaymentProviderError(f"Stripe did not answer: {error}", is_retryable=True) from error
    except stripe.StripeError as error:
        status = error.http_status or 0
        # 409: another call with this key is under way.
        raise PaymentProviderError(f"Stripe refused: {error}", is_retryable=status >= 500 or status == 409) from error
