"""Reads Stripe's objects as facts: pure, from the JSON that it answers with."""

from __future__ import annotations

from typing import Any, Literal

from billing.payments.gateway import InvoiceFact, RefundFact, Subject, TopUpFact

Json = dict[str, Any]  # Stripe's own objects

_SUBJECTS: dict[str, Literal["invoice", "checkout", "payment", "refund"]] = {
    "invoice.paid": "invoice",
    "invoice.payment_succeeded": "invoice",
    "invoice.voided": "invoice",
    "invoice.marked_uncollectible": "invoice",
    "checkout.session.completed": "checkout",
    "checkout.session.async_payment_succeeded": "checkout",
    "checkout.session.async_payment_failed": "checkout",
    "checkout.session.expired": "checkout",
    "payment_intent.succeeded": "payment",
    "payment_intent.payment_failed": "payment",
    "payment_intent.canceled": "payment",
    "refund.created": "refund",
    "refund.updated": "refund",
    "refund.failed": "refund",
}


def subject_of(event_type: str, payload: Json) -> Subject | None:
    kind = _SUBJECTS.get(event_type)
    return (kind, str(payload["data"]["object"]["id"])) if kind else None


def _ours(found: Json, name: str) -> int | None:
    """The id that we wrote into the object's metadata."""
    value = str((found.get("metadata") or {}).get(name, ""))
    return int(value) if value.isdecimal() and len(value) < 19 else None


def invoice_fact(invoice: Json) -> InvoiceFact:
    status = invoice["status"]
    return InvoiceFact(
        external_id=str(invoice["id"]),
        invoice_id=_ours(invoice, "invoice_id"),
        status=status if status in ("paid", "void", "uncollectible") else "open",
        # An invoice is paid once, and every event about it carries its id.
        payment_id=str(invoice["id"]),
        paid_minor=int(invoice["amount_paid"]),
        currency=str(invoice["currency"]).upper(),
    )


def checkout_fact(session: Json) -> TopUpFact:
    """Of a session that was asked for with its payment."""
    payment: Json = session["payment_intent"] if isinstance(session.get("payment_intent"), dict) else {}
    failure = _failure(payment)
    state: Literal["open", "paid", "failed", "expired"] = "open"
    if session["payment_status"] == "paid":
        state = "paid"
    elif session["status"] == "expired":
        state = "expired"
    elif session["status"] == "complete" and failure:
        # A payment that takes days, and came to nothing.
        state = "failed"
    return TopUpFact(
        top_up_id=_ours(session, "top_up_id"),
        state=state,
        session_id=str(session["id"]),
        payment_id=str(payment.get("id", "")),
        total_minor=int(session["amount_total"]),
        currency=str(session["currency"]).upper(),
        payment_method_id=_kept_card(payment),
        customer_id=str(session.get("customer") or ""),
        failure=failure,
    )


def payment_fact(payment: Json) -> TopUpFact:
    states: dict[str, Literal["open", "paid", "failed", "expired"]] = {
        "succeeded": "paid",
        "canceled": "failed",
        "requires_payment_method": "failed",
        "requires_action": "failed",
    }
    return TopUpFact(
        top_up_id=_ours(payment, "top_up_id"),
        state=states.get(payment["status"], "open"),
        session_id="",
        payment_id=str(payment["id"]),
        total_minor=int(payment["amount"]),
        currency=str(payment["currency"]).upper(),
        payment_method_id=_kept_card(payment),
        customer_id=str(payment.get("customer") or ""),
        failure=_failure(payment),
    )


def _failure(payment: Json) -> str:
    return str((payment.get("last_payment_error") or {}).get("message", ""))


def _kept_card(payment: Json) -> str:
    """Only a card that its owner let us keep; the method of a single payment is none."""
    return str(payment.get("payment_method") or "") if payment.get("setup_future_usage") == "off_session" else ""


def refund_fact(refund: Json) -> RefundFact:
    states: dict[str, Literal["pending", "succeeded", "failed"]] = {
        "succeeded": "succeeded",
        "failed": "failed",
        "canceled": "failed",
    }
    return RefundFact(
        refund_id=_ours(refund, "refund_id"),
        external_id=str(refund["id"]),
        state=states.get(refund["status"], "pending"),
        failure=str(refund.get("failure_reason") or ""),
    )
