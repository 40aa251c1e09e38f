"""The objects and what may be done to them."""

from __future__ import annotations

import itertools
import re
import time
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests.fakes.stripe.errors import Refusal, missing

API_VERSION = "2026-10-28.endive"
ITEM_LIMIT = 250

Object = dict[str, Any]


class Store:
    """Objects by id, in the order of their making. Each act on an invoice leaves the events that Stripe would send."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.events: list[Object] = []
        self._numbers = itertools.count(1)

    def _make(self, prefix: str, kind: str, values: Object) -> Object:
        made = {
            "id": f"{prefix}_{next(self._numbers):012d}",
            "object": kind,
            "created": int(time.time()),
            "livemode": False,
            **values,
        }
        self.objects[made["id"]] = made
        return made

    def get(self, kind: str, identifier: str, param: str = "id") -> Object:
        found = self.objects.get(identifier)
        if found is None or found["object"] != kind:
            raise missing(kind, identifier, param)
        return found

    def all(self, kind: str) -> list[Object]:
        """Newest first, as Stripe lists."""
        return [found for found in reversed(self.objects.values()) if found["object"] == kind]

    def page(self, found: list[Object], params: Object, url: str) -> Object:
        limit = params.get("limit", 10)
        if not 1 <= limit <= 100:
            raise Refusal("This value must be between 1 and 100.", param="limit")
        start = 0
        if after := params.get("starting_after"):
            start = next((i + 1 for i, row in enumerate(found) if row["id"] == after), len(found))
        rows = found[start : start + limit]
        return {"object": "list", "url": url, "data": rows, "has_more": start + limit < len(found)}

    def search(self, kind: str, query: str) -> list[Object]:
        """`metadata['key']:'value'`, the form of the search language that we use."""
        match = re.fullmatch(r"metadata\['(\w+)'\]:'([^']*)'", query)
        if match is None:
            raise Refusal(f"We were unable to parse your search query: {query}", param="query")
        return [row for row in self.all(kind) if row["metadata"].get(match[1]) == match[2]]

    # Customers, products, prices ------------------------------------------------------------------------------------
    def create_customer(self, params: Object) -> Object:
        defaults = {"email": None, "name": None, "address": None, "metadata": {}, "balance": 0}
        return self._make("cus", "customer", {**defaults, **params})

    def update(self, kind: str, identifier: str, params: Object) -> Object:
        found = self.get(kind, identifier)
        if kind == "invoice" and found["status"] != "draft" and set(params) - {"metadata", "auto_advance"}:
            raise Refusal(f"Finalized invoices can't be updated in this way: {identifier}", code="invoice_not_editable")
        metadata = {**found["metadata"], **params.pop("metadata", {})}
        found.update(params, metadata=metadata)
        return found

    def create_product(self, params: Object) -> Object:
        return self._make("prod", "product", {"active": True, "metadata": {}, **params})

    def create_price(self, params: Object) -> Object:
        self.get("product", params.get("product", ""), "product")
        if ("unit_amount" in params) == ("unit_amount_decimal" in params):
            raise Refusal("Give one of unit_amount and unit_amount_decimal.", param="unit_amount")
        decimal = Decimal(params.get("unit_amount_decimal", params.get("unit_amount", 0)))
        amounts = {"unit_amount_decimal": str(decimal), "unit_amount": params.get("unit_amount")}
        return self._make("price", "price", {"active": True, "type": "one_time", "metadata": {}, **params, **amounts})

    # Invoices -------------------------------------------------------------------------------------------------------
    def create_invoice(self, params: Object) -> Object:
        customer = self.get("customer", params.get("customer", ""), "customer")
        if params.get("collection_method") == "send_invoice" and not {"days_until_due", "due_date"} & params.keys():
            raise Refusal("Invoices sent by mail need days_until_due or due_date.", param="days_until_due")
        number = params.get("number")
        if number and any(row["number"] == number for row in self.all("invoice")):
            raise Refusal(f"An invoice with the number {number} exists already.", param="number")
        defaults: Object = {
            "status": "draft",
            "auto_advance": False,
            "collection_method": "charge_automatically",
            "number": None,
            "customer_email": customer["email"],
            "metadata": {},
            "hosted_invoice_url": None,
            "due_date": None,
            "amount_paid": 0,
            "post_payment_credit_notes_amount": 0,
            "pre_payment_credit_notes_amount": 0,
        }
        if "days_until_due" in params:
            params["due_date"] = int(time.time()) + params.pop("days_until_due") * 86_400
        params.pop("pending_invoice_items_behavior", None)
        invoice = self._make("in", "invoice", {**defaults, **params})
        self._total(invoice)
        self._emit("invoice.created", invoice)
        return invoice

    def create_item(self, params: Object) -> Object:
        self.get("customer", params.get("customer", ""), "customer")
        item = {"description": None, "metadata": {}, "discountable": True, **params, "amount": self._amount(params)}
        if identifier := params.get("invoice"):
            invoice = self.get("invoice", identifier, "invoice")
            if invoice["status"] != "draft":
                raise Refusal("This invoice is no longer editable", code="invoice_not_editable", param="invoice")
            if invoice["customer"] != params["customer"]:
                raise Refusal("The customer of the item is not the invoice's.", param="customer")
            if params.get("currency", invoice["currency"]) != invoice["currency"]:
                raise Refusal("The currency of the item is not the invoice's.", param="currency")
            if len(self.items_of(identifier)) >= ITEM_LIMIT:
                raise Refusal(f"An invoice has at most {ITEM_LIMIT} items.", param="invoice")
        made = self._make("ii", "invoiceitem", _texts(item))
        if identifier:
            self._total(self.get("invoice", identifier))
        return made

    def _amount(self, params: Object) -> int:
        by_unit = "unit_amount_decimal" in params or "pricing" in params
        if ("amount" in params) == by_unit:
            raise Refusal("Give one of amount, unit_amount_decimal and pricing.", param="amount")
        if not by_unit:
            if {"quantity", "quantity_decimal"} & params.keys():
                raise Refusal("A quantity needs a unit amount, not an amount.", param="quantity")
            return int(params["amount"])
        quantity = Decimal(params.get("quantity_decimal", params.get("quantity", 1)))
        if quantity < 0:
            raise Refusal("A quantity cannot be negative.", param="quantity_decimal")
        if "pricing" in params:
            unit = Decimal(self.get("price", params["pricing"]["price"], "pricing[price]")["unit_amount_decimal"])
        else:
            unit = params["unit_amount_decimal"]
        return int((quantity * unit).quantize(Decimal(1), ROUND_HALF_UP))

    def items_of(self, invoice_id: str) -> list[Object]:
        return [row for row in self.all("invoiceitem") if row.get("invoice") == invoice_id]

    def _total(self, invoice: Object) -> None:
        total = sum(item["amount"] for item in self.items_of(invoice["id"]))
        due = max(total, 0)
        invoice.update(
            subtotal=total,
            total=total,
            amount_due=due,
            amount_remaining=due - invoice["amount_paid"] - invoice["pre_payment_credit_notes_amount"],
        )

    def finalize(self, identifier: str, params: Object) -> Object:
        invoice = self.get("invoice", identifier)
        if invoice["status"] != "draft":
            raise Refusal(
                "This invoice is already finalized, you can't re-finalize a non-draft invoice.",
                code="invoice_not_editable",
            )
        invoice.update(
            status="open",
            number=invoice["number"] or f"FAKE-{next(self._numbers):04d}",
            hosted_invoice_url=f"https://invoice.example/{identifier}",
            effective_at=int(time.time()),
            **params,
        )
        self._emit("invoice.finalized", invoice)
        if invoice["amount_due"] == 0:
            self._paid(invoice)
        return invoice

    def send(self, identifier: str) -> Object:
        invoice = self.get("invoice", identifier)
        if invoice["collection_method"] != "send_invoice" or invoice["status"] not in ("draft", "open"):
            raise Refusal(f"Invoice {identifier} can't be sent: it is {invoice['status']}.")
        if invoice["status"] == "draft":
            self.finalize(identifier, {})
        if invoice["status"] == "open":
            self._emit("invoice.sent", invoice)
        return invoice

    def pay(self, identifier: str) -> Object:
        invoice = self.get("invoice", identifier)
        if invoice["status"] == "paid":
            raise Refusal("Invoice is already paid")
        if invoice["status"] != "open":
            raise Refusal(f"Invoice {identifier} can't be paid: it is {invoice['status']}.")
        self._paid(invoice)
        return invoice

    def _paid(self, invoice: Object) -> None:
        invoice.update(status="paid", amount_paid=invoice["amount_remaining"], amount_remaining=0)
        self._emit("invoice.paid", invoice)
        self._emit("invoice.payment_succeeded", invoice)

    def void(self, identifier: str) -> Object:
        invoice = self.get("invoice", identifier)
        if invoice["status"] not in ("open", "uncollectible"):
            raise Refusal(f"You can only pass in open or uncollectible invoices. This one is {invoice['status']}.")
        invoice.update(status="void", amount_remaining=0)
        self._emit("invoice.voided", invoice)
        return invoice

    def delete_draft(self, identifier: str) -> Object:
        invoice = self.get("invoice", identifier)
        if invoice["status"] != "draft":
            raise Refusal("You can only delete draft invoices.")
        for gone in [invoice, *self.items_of(identifier)]:
            del self.objects[gone["id"]]
        return {"id": identifier, "object": "invoice", "deleted": True}

    def credit(self, params: Object) -> Object:
        invoice = self.get("invoice", params.get("invoice", ""), "invoice")
        if invoice["status"] not in ("open", "paid"):
            raise Refusal(f"A credit note needs an open or paid invoice; this one is {invoice['status']}.")
        amount = params.get("amount", 0)
        is_open = invoice["status"] == "open"
        credited = invoice["pre_payment_credit_notes_amount"] + invoice["post_payment_credit_notes_amount"]
        if not 0 < amount <= invoice["total"] - credited:
            raise Refusal("The amount is more than what is left of the invoice.", param="amount")
        field = "pre_payment_credit_notes_amount" if is_open else "post_payment_credit_notes_amount"
        invoice[field] += amount
        note = self._make(
            "cn", "credit_note", {"status": "issued", "metadata": {}, "currency": invoice["currency"], **params}
        )
        self._emit("credit_note.created", note)
        if is_open:
            self._total(invoice)
            if invoice["amount_remaining"] == 0:
                self._paid(invoice)
        return note

    # Events ---------------------------------------------------------------------------------------------------------
    def _emit(self, kind: str, about: Object) -> None:
        event = self._make(
            "evt",
            "event",
            {
                "type": kind,
                "api_version": API_VERSION,
                "pending_webhooks": 1,
                "request": {"id": None, "idempotency_key": None},
                "data": {"object": dict(about)},
            },
        )
        self.events.append(event)


def _texts(item: Object) -> Object:
    """Decimals as Stripe shows them: text."""
    return {key: str(value) if isinstance(value, Decimal) else value for key, value in item.items()}
