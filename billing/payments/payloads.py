"""The exact requests that bill an invoice at Stripe: pure, and the same whether they are sent or written to a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from billing.money import TOKENS_PER_PRICE, from_minor, nano_per_minor

if TYPE_CHECKING:
    from billing.payments.gateway import BilledInvoice, BilledLine

API_VERSION = "2026-10-28.endive"
# Stripe takes 250 items on an invoice; one is kept for the credit and one for what was grouped.
LINE_LIMIT = 248
# Stand in a written request for the ids that Stripe would have answered with.
CUSTOMER, INVOICE = "{customer.id}", "{invoice.id}"

Params = dict[str, Any]  # Stripe's own request parameters; tests check them against the client's typed ones


@dataclass(frozen=True)
class Request:
    """One call. The key names our invoice and the step, so that a repeat within a day is answered, not done again."""

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
    return str(value) if isinstance(value, Decimal) else value


def requests_of(invoice: BilledInvoice) -> Iterator[Request]:
    """All steps in order, with placeholders for the provider's ids."""
    customer = invoice.customer_id or CUSTOMER
    if not invoice.customer_id:
        yield Request("POST", "/v1/customers", customer_key(invoice), customer_params(invoice))
    yield Request("POST", "/v1/invoices", step_key(invoice, "create"), invoice_params(invoice, customer))
    for step, params in item_steps(invoice, customer, INVOICE):
        yield Request("POST", "/v1/invoiceitems", step_key(invoice, step), params)
    yield Request("POST", f"/v1/invoices/{INVOICE}/finalize", step_key(invoice, "finalize"), {"auto_advance": False})
    if invoice.total_minor:
        yield Request("POST", f"/v1/invoices/{INVOICE}/send", step_key(invoice, "send"), {})


def step_key(invoice: BilledInvoice, step: str) -> str:
    return f"invoice-{invoice.invoice_id}-{step}"


def customer_key(invoice: BilledInvoice) -> str:
    return f"customer-of-organization-{invoice.organization_id}"


def customer_params(invoice: BilledInvoice) -> Params:
    params: Params = {
        "email": invoice.email,
        "name": invoice.name,
        "metadata": {"organization_id": str(invoice.organization_id)},
    }
    if invoice.address:
        params["address"] = invoice.address
    return params


def invoice_params(invoice: BilledInvoice, customer_id: str) -> Params:
    return {
        "customer": customer_id,
        "currency": invoice.currency.lower(),
        "number": invoice.number,
        # We advance it ourselves, step by step.
        "auto_advance": False,
        "collection_method": "send_invoice",
        "due_date": int(invoice.due_at.timestamp()),
        "pending_invoice_items_behavior": "exclude",
        "metadata": {"invoice_id": str(invoice.invoice_id), "organization_id": str(invoice.organization_id)},
    }


def item_steps(invoice: BilledInvoice, customer_id: str, external_id: str) -> Iterator[tuple[str, Params]]:
    """An item for each line, one for the lines past the limit together, and one for the credit applied."""
    common = {
        "customer": customer_id,
        "invoice": external_id,
        "currency": invoice.currency.lower(),
        "period": {"start": int(invoice.period_start.timestamp()), "end": int(invoice.period_end.timestamp()) - 1},
    }
    for line in invoice.lines[:LINE_LIMIT]:
        step = f"line-{line.position}"
        yield step, {**common, "description": line.description, "metadata": {"step": step}, **_amount(line, invoice)}
    rest = invoice.lines[LINE_LIMIT:]
    if rest:
        yield (
            "lines-rest",
            {
                **common,
                "description": f"Further usage, {len(rest)} lines",
                "metadata": {"step": "lines-rest"},
                "amount": sum(line.amount_minor for line in rest),
            },
        )
    if invoice.credit_minor:
        yield (
            "credit",
            {
                **common,
                "description": "Prepaid credit applied",
                "metadata": {"step": "credit"},
                "amount": -invoice.credit_minor,
            },
        )


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
