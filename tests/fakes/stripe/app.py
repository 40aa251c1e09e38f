"""HTTP around the store: keys, versions, typed parameters, idempotency and faults."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stripe import params as typed
from stripe.params import billing_portal as typed_portal
from stripe.params import checkout as typed_checkout
from tests.fakes.stripe.errors import Refusal
from tests.fakes.stripe.parameters import check, decode
from tests.fakes.stripe.payments import PaymentStore
from tests.fakes.stripe.store import API_VERSION, Object

Answer = tuple[int, Object]


@dataclass
class Fault:
    """The next `times` requests that match go wrong, after `skip` that go well.

    `kind`: `error` answers `status` and does nothing; `lost_answer` does the work and breaks the connection.
    """

    method: str = "POST"
    path: str = ".*"
    kind: str = "error"
    status: int = 500
    times: int = 1
    skip: int = 0

    def strikes(self, method: str, path: str) -> bool:
        if self.times == 0 or method != self.method or not re.fullmatch(self.path, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    params: Object
    idempotency_key: str | None


class LostAnswer(Exception):
    """The work is done; the caller never learns it."""


class Api:
    def __init__(self, secret_key: str) -> None:
        self.secret_key = secret_key
        self.store = PaymentStore()
        self.faults: list[Fault] = []
        self.received: list[Received] = []
        self._answers: dict[str, tuple[tuple[str, str, str], Answer]] = {}

    def handle(self, method: str, path: str, headers: dict[str, str], query: str, body: str) -> Answer:
        """One request to its answer. Raises LostAnswer."""
        try:
            self._authenticate(headers)
            fault = next((fault for fault in self.faults if fault.strikes(method, path)), None)
            if fault and fault.kind == "error":
                kind = "rate_limit_error" if fault.status == 429 else "api_error"
                raise Refusal("Ordered by the test.", status=fault.status, kind=kind)
            answer = self._once(method, path, headers.get("idempotency-key"), query if method == "GET" else body)
            if fault:
                raise LostAnswer
            return answer
        except Refusal as refusal:
            return refusal.status, refusal.body

    def _authenticate(self, headers: dict[str, str]) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            token = base64.b64decode(token).decode().partition(":")[0]
        if token != self.secret_key:
            raise Refusal("Invalid API Key provided.", status=401)
        if headers.get("stripe-version") != API_VERSION:
            raise Refusal(f"The version must be {API_VERSION}, not {headers.get('stripe-version')}.")

    def _once(self, method: str, path: str, key: str | None, form: str) -> Answer:
        """The same key with the same request gets the first answer again; with another request it is an error."""
        request = (method, path, form)
        if key and key in self._answers:
            first, answer = self._answers[key]
            if first != request:
                raise Refusal(
                    f"Keys for idempotent requests can only be used with the same parameters: '{key}'.",
                    kind="idempotency_error",
                )
            return answer
        answer = 200, self._route(method, path, key, form)
        if key:
            # The answer as it was: later changes of the object do not show in it.
            self._answers[key] = request, (200, json.loads(json.dumps(answer[1], default=str)))
        return answer

    def _route(self, method: str, path: str, key: str | None, form: str) -> Object:
        for verb, pattern, params_type, act in ROUTES:
            match = re.fullmatch(pattern, path)
            if verb == method and match:
                params = check(params_type, decode(form))
                self.received.append(Received(method, path, copy.deepcopy(params), key))
                return act(self.store, params, *match.groups())
        raise Refusal(f"Unrecognized request URL ({method}: {path}).", status=404)


def _list_invoices(store: PaymentStore, params: Object) -> Object:
    found = store.all("invoice")
    for field in ("customer", "status"):
        if field in params:
            found = [row for row in found if row[field] == params[field]]
    return store.page(found, params, "/v1/invoices")


def _list_items(store: PaymentStore, params: Object) -> Object:
    found = store.items_of(params["invoice"]) if "invoice" in params else store.all("invoiceitem")
    return store.page(found, params, "/v1/invoiceitems")


def _list_credit_notes(store: PaymentStore, params: Object) -> Object:
    found = [row for row in store.all("credit_note") if params.get("invoice") in (None, row["invoice"])]
    return store.page(found, params, "/v1/credit_notes")


def _list_refunds(store: PaymentStore, params: Object) -> Object:
    payment = params.get("payment_intent")
    found = [row for row in store.all("refund") if payment in (None, row["payment_intent"])]
    return store.page(found, params, "/v1/refunds")


def _list_customers(store: PaymentStore, params: Object) -> Object:
    found = [row for row in store.all("customer") if params.get("email") in (None, row["email"])]
    return store.page(found, params, "/v1/customers")


def _search(kind: str, url: str) -> Callable[..., Object]:
    def act(store: PaymentStore, params: Object) -> Object:
        found = store.search(kind, params["query"])[: params.get("limit", 10)]
        return {"object": "search_result", "url": url, "data": found, "has_more": False, "next_page": None}

    return act


def _get(kind: str) -> Callable[..., Object]:
    return lambda store, params, identifier: store.get(kind, identifier)


ROUTES: list[tuple[str, str, Any, Callable[..., Object]]] = [
    ("POST", r"/v1/customers", typed.CustomerCreateParams, lambda store, params: store.create_customer(params)),
    ("GET", r"/v1/customers", typed.CustomerListParams, _list_customers),
    ("GET", r"/v1/customers/search", typed.CustomerSearchParams, _search("customer", "/v1/customers/search")),
    ("GET", r"/v1/customers/(cus_\w+)", typed.CustomerRetrieveParams, _get("customer")),
    (
        "POST",
        r"/v1/customers/(cus_\w+)",
        typed.CustomerUpdateParams,
        lambda store, params, identifier: store.update("customer", identifier, params),
    ),
    ("POST", r"/v1/products", typed.ProductCreateParams, lambda store, params: store.create_product(params)),
    ("POST", r"/v1/prices", typed.PriceCreateParams, lambda store, params: store.create_price(params)),
    ("POST", r"/v1/invoiceitems", typed.InvoiceItemCreateParams, lambda store, params: store.create_item(params)),
    ("GET", r"/v1/invoiceitems", typed.InvoiceItemListParams, _list_items),
    ("POST", r"/v1/invoices", typed.InvoiceCreateParams, lambda store, params: store.create_invoice(params)),
    ("GET", r"/v1/invoices", typed.InvoiceListParams, _list_invoices),
    ("GET", r"/v1/invoices/search", typed.InvoiceSearchParams, _search("invoice", "/v1/invoices/search")),
    ("GET", r"/v1/invoices/(in_\w+)", typed.InvoiceRetrieveParams, _get("invoice")),
    (
        "DELETE",
        r"/v1/invoices/(in_\w+)",
        typed.InvoiceDeleteParams,
        lambda store, params, identifier: store.delete_draft(identifier),
    ),
    (
        "POST",
        r"/v1/invoices/(in_\w+)",
        typed.InvoiceUpdateParams,
        lambda store, params, identifier: store.update("invoice", identifier, params),
    ),
    (
        "POST",
        r"/v1/invoices/(in_\w+)/finalize",
        typed.InvoiceFinalizeInvoiceParams,
        lambda store, params, identifier: store.finalize(identifier, params),
    ),
    (
        "POST",
        r"/v1/invoices/(in_\w+)/send",
        typed.InvoiceSendInvoiceParams,
        lambda store, params, identifier: store.send(identifier),
    ),
    (
        "POST",
        r"/v1/invoices/(in_\w+)/pay",
        typed.InvoicePayParams,
        lambda store, params, identifier: store.pay(identifier, params),
    ),
    (
        "POST",
        r"/v1/invoices/(in_\w+)/void",
        typed.InvoiceVoidInvoiceParams,
        lambda store, params, identifier: store.void(identifier),
    ),
    ("POST", r"/v1/credit_notes", typed.CreditNoteCreateParams, lambda store, params: store.credit(params)),
    (
        "POST",
        r"/v1/invoices/(in_\w+)/mark_uncollectible",
        typed.InvoiceMarkUncollectibleParams,
        lambda store, params, identifier: store.mark_uncollectible(identifier),
    ),
    ("GET", r"/v1/credit_notes", typed.CreditNoteListParams, _list_credit_notes),
    (
        "POST",
        r"/v1/customers/(cus_\w+)/tax_ids",
        typed.CustomerTaxIdCreateParams,
        lambda store, params, identifier: store.create_tax_id(identifier, params),
    ),
    (
        "GET",
        r"/v1/customers/(cus_\w+)/tax_ids",
        typed.CustomerTaxIdListParams,
        lambda store, params, identifier: store.of_customer(
            "tax_id", {**params, "customer": identifier}, f"/v1/customers/{identifier}/tax_ids"
        ),
    ),
    (
        "POST",
        r"/v1/checkout/sessions",
        typed_checkout.SessionCreateParams,
        lambda store, params: store.create_session(params),
    ),
    (
        "GET",
        r"/v1/checkout/sessions",
        typed_checkout.SessionListParams,
        lambda store, params: store.of_customer("checkout.session", params, "/v1/checkout/sessions"),
    ),
    (
        "GET",
        r"/v1/checkout/sessions/(cs_\w+)",
        typed_checkout.SessionRetrieveParams,
        lambda store, params, identifier: store.session(identifier, params),
    ),
    (
        "POST",
        r"/v1/payment_intents",
        typed.PaymentIntentCreateParams,
        lambda store, params: store.create_payment(params),
    ),
    (
        "GET",
        r"/v1/payment_intents",
        typed.PaymentIntentListParams,
        lambda store, params: store.of_customer("payment_intent", params, "/v1/payment_intents"),
    ),
    ("GET", r"/v1/payment_intents/(pi_\w+)", typed.PaymentIntentRetrieveParams, _get("payment_intent")),
    ("POST", r"/v1/refunds", typed.RefundCreateParams, lambda store, params: store.create_refund(params)),
    ("GET", r"/v1/refunds", typed.RefundListParams, _list_refunds),
    ("GET", r"/v1/refunds/(re_\w+)", typed.RefundRetrieveParams, _get("refund")),
    (
        "POST",
        r"/v1/billing_portal/sessions",
        typed_portal.SessionCreateParams,
        lambda store, params: store.create_portal(params),
    ),
    ("GET", r"/v1/events/(evt_\w+)", typed.EventRetrieveParams, _get("event")),
]
