"""The exact requests that we make of Stripe: pure, and the same whether they are sent or written to a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from billing.money import TOKENS_PER_PRICE, from_minor, nano_per_minor
from billing.payments.gateway import (
    BilledCreditNote,
    BilledInvoice,
    BilledLine,
    CardCharge,
    CheckoutOrder,
    Payer,
    RefundOrder,
)

API_VERSION = "2026-10-28.endive"
# Stripe takes 250 items on an invoice; one is kept for the credit, one for the tax and one for what was grouped.
LINE_LIMIT = 247
# Stripe shows at most so much of a text.
_TEXT_LIMIT = 500
# Stand in a written request for the ids that Stripe would have answered with.
CUSTOMER, INVOICE = "{customer.id}", "{invoice.id}"

Params = dict[str, Any]  # Stripe's own request parameters; tests check them against the client's typed ones


@dataclass(frozen=True)
class Request:
    """One call. The key names our row and the step, so that a repeat within a day is answered, not done again."""

    method: str
    path: str
    idempotency_key: str
    params: Params

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "path": self.path,
            "idempotency_key": self.idempotency_key,
            "params": _plain(self.params),
        }


def _plain(value: Any) -> Any:
    """Decimals as text, as they go over the wire."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Decimal) else value


def requests_of(invoice: BilledInvoice) -> Iterator[Request]:
    """All steps of an invoice in order, with placeholders for the provider's ids."""
    customer = invoice.payer.customer_id or CUSTOMER
    if not invoice.payer.customer_id:
        yield Request("POST", "/v1/customers", customer_key(invoice.payer), customer_params(invoice.payer))
    yield Request("POST", "/v1/invoices", step_key(invoice, "create"), invoice_params(invoice, customer))
    for step, params in item_steps(invoice, customer, INVOICE):
        yield Request("POST", "/v1/invoiceitems", step_key(invoice, step), params)
    yield Request("POST", f"/v1/invoices/{INVOICE}/finalize", step_key(invoice, "finalize"), {"auto_advance": False})
    if invoice.total_minor:
        yield Request("POST", f"/v1/invoices/{INVOICE}/send", step_key(invoice, "send"), {})


def step_key(invoice: BilledInvoice, step: str) -> str:
    return f"invoice-{invoice.invoice_id}-{step}"


# Customers --------------------------------------------------------------------------------------
def customer_key(payer: Payer) -> str:
    return f"customer-of-organization-{payer.organization_id}"


def customer_params(payer: Payer) -> Params:
    """To create one; the tax number goes along when Stripe knows its kind."""
    params = customer_update(payer)
    params["metadata"] = {"organization_id": str(payer.organization_id)}
    if payer.tax_id_type:
        params["tax_id_data"] = [{"type": payer.tax_id_type, "value": payer.tax_id}]
    return params


def customer_update(payer: Payer) -> Params:
    """What may have changed since: whom invoices and receipts are addressed to, and in which language."""
    params: Params = {"email": payer.email, "name": payer.name, "preferred_locales": [payer.language]}
    if payer.address:
        params["address"] = payer.address
    return params


# Invoices ---------------------------------------------------------------------------------------
def invoice_params(invoice: BilledInvoice, customer_id: str) -> Params:
    params: Params = {
        "customer": customer_id,
        "currency": invoice.currency.lower(),
        "number": invoice.number,
        # We advance it ourselves, step by step.
        "auto_advance": False,
        "collection_method": "send_invoice",
        "due_date": int(invoice.due_at.timestamp()),
        "pending_invoice_items_behavior": "exclude",
        "metadata": {"invoice_id": str(invoice.invoice_id), "organization_id": str(invoice.payer.organization_id)},
    }
    if invoice.tax_note:
        params["footer"] = invoice.tax_note
    return params


def item_steps(invoice: BilledInvoice, customer_id: str, external_id: str) -> Iterator[tuple[str, Params]]:
    """An item for each line, one for the lines past the limit together, one for the credit applied, one for the tax."""
    common = {
        "customer": customer_id,
        "invoice": external_id,
        "currency": invoice.currency.lower(),
        "period": {"start": int(invoice.period_start.timestamp()), "end": int(invoice.period_end.timestamp()) - 1},
    }

    def whole(step: str, description: str, amount_minor: int) -> tuple[str, Params]:
        texts = {"description": description[:_TEXT_LIMIT], "metadata": {"step": step}}
        return step, {**common, **texts, "amount": amount_minor}

    for line in invoice.lines[:LINE_LIMIT]:
        step, params = whole(f"line-{line.position}", line.description, line.amount_minor)
        del params["amount"]
        yield step, {**params, **_amount(line, invoice)}
    if rest := invoice.lines[LINE_LIMIT:]:
        yield whole("lines-rest", f"Further usage, {len(rest)} lines", sum(line.amount_minor for line in rest))
    if invoice.credit_minor:
        yield whole("credit", "Prepaid credit applied", -invoice.credit_minor)
    if invoice.tax_minor:
        yield whole("tax", invoice.tax_label, invoice.tax_minor)


def _amount(line: BilledLine, invoice: BilledInvoice) -> Params:
    """Millions of tokens times their price where that is whole cents, else the amount that we rounded.

    Stripe rounds products by its own rule, so it is given none to round.
    """
    exact_nano = Decimal(line.tokens * line.unit_price_nano) / TOKENS_PER_PRICE
    if line.tokens > 0 and exact_nano == from_minor(line.amount_minor, invoice.currency):
        return {
            "quantity_decimal": Decimal(line.tokens) / TOKENS_PER_PRICE,
            "unit_amount_decimal": Decimal(line.unit_price_nano) / nano_per_minor(invoice.currency),
        }
    return {"amount": line.amount_minor}


def void_request(external_id: str) -> Request:
    return Request("POST", f"/v1/invoices/{external_id}/void", f"void-{external_id}", {})


def give_up_request(external_id: str) -> Request:
    return Request("POST", f"/v1/invoices/{external_id}/mark_uncollectible", f"give-up-{external_id}", {})


def credit_note_request(note: BilledCreditNote, invoice_external_id: str) -> Request:
    params: Params = {
        "invoice": invoice_external_id,
        "amount": note.total_minor,
        "memo": note.reason[:_TEXT_LIMIT],
        "metadata": {"credit_note_id": str(note.credit_note_id), "number": note.number},
    }
    if note.is_refund:
        params["refund_amount"] = note.total_minor
    return Request("POST", "/v1/credit_notes", f"credit-note-{note.credit_note_id}", params)


# Credit -----------------------------------------------------------------------------------------
def checkout_params(order: CheckoutOrder, customer_id: str) -> Params:
    """A hosted page for one payment. The tax is a line of its own, in the amount that we computed."""

    def line(name: str, amount_minor: int) -> Params:
        price = {"currency": order.currency.lower(), "unit_amount": amount_minor, "product_data": {"name": name}}
        return {"quantity": 1, "price_data": price}

    lines = [line(order.description, order.amount_minor)]
    if order.tax_minor:
        lines.append(line(order.tax_label, order.tax_minor))
    metadata = _top_up_metadata(order.top_up_id, order.payer)
    payment: Params = {"metadata": metadata, "description": order.description}
    if order.keeps_card:
        payment["setup_future_usage"] = "off_session"
    return {
        "mode": "payment",
        "customer": customer_id,
        "client_reference_id": str(order.top_up_id),
        "line_items": lines,
        "metadata": metadata,
        "payment_intent_data": payment,
        "success_url": order.return_url,
        "cancel_url": order.return_url,
    }


def charge_params(charge: CardCharge, customer_id: str) -> Params:
    return {
        "customer": customer_id,
        "payment_method": charge.payment_method_id,
        "amount": charge.total_minor,
        "currency": charge.currency.lower(),
        "description": charge.description,
        "off_session": True,
        "confirm": True,
        # A card that wants its owner there is a refusal: nobody is.
        "error_on_requires_action": True,
        "metadata": _top_up_metadata(charge.top_up_id, charge.payer),
    }


def refund_params(order: RefundOrder) -> Params:
    return {
        "payment_intent": order.payment_id,
        "amount": order.total_minor,
        "reason": "requested_by_customer",
        "metadata": {"refund_id": str(order.refund_id)},
    }


def _top_up_metadata(top_up_id: int, payer: Payer) -> dict[str, str]:
    return {"top_up_id": str(top_up_id), "organization_id": str(payer.organization_id)}
