"""Cards and money: Checkout pages and their completion, payments, refunds, tax numbers, the customer portal."""

from __future__ import annotations

import re

from tests.fakes.stripe.errors import Refusal
from tests.fakes.stripe.store import Object, Store

# What a card does when it is charged; the names are those of Stripe's own test cards.
GOOD, DECLINED, WANTS_OWNER = "pm_card_visa", "pm_card_chargeDeclined", "pm_card_authenticationRequired"
_REFUSALS = {
    DECLINED: ("card_declined", "Your card was declined."),
    WANTS_OWNER: ("authentication_required", "Your card was declined. This transaction requires authentication."),
}
_TAX_ID_FORMS = {"eu_vat": r"[A-Z]{2}[A-Z0-9+*]{2,12}", "gb_vat": r"GB\d{9,12}", "us_ein": r"\d{2}-?\d{7}"}


class PaymentStore(Store):
    # Tax numbers ----------------------------------------------------------------------------------------------------
    def create_customer(self, params: Object) -> Object:
        tax_ids = params.pop("tax_id_data", [])
        for tax_id in tax_ids:
            self._check_tax_id(tax_id)
        customer = super().create_customer(params)
        for tax_id in tax_ids:
            self.create_tax_id(customer["id"], tax_id)
        return customer

    def create_tax_id(self, customer_id: str, params: Object) -> Object:
        self.get("customer", customer_id)
        self._check_tax_id(params)
        verification = {"status": "pending", "verified_name": None}
        return self._make("txi", "tax_id", {**params, "customer": customer_id, "verification": verification})

    def _check_tax_id(self, params: Object) -> None:
        form = _TAX_ID_FORMS.get(params["type"])
        if form and not re.fullmatch(form, params["value"]):
            raise Refusal(f"Invalid value for {params['type']}.", code="tax_id_invalid", param="value")

    # Cards ----------------------------------------------------------------------------------------------------------
    def attach(self, customer_id: str, behaviour: str = GOOD) -> str:
        """A card of the customer that behaves like one of Stripe's test cards."""
        self.get("customer", customer_id)
        return str(self._make("pm", "payment_method", {"customer": customer_id, "behaviour": behaviour})["id"])

    def _refusal_of(self, payment_method_id: str) -> tuple[str, str] | None:
        method = self.get("payment_method", payment_method_id, "payment_method")
        return _REFUSALS.get(method["behaviour"])

    # Checkout -------------------------------------------------------------------------------------------------------
    def create_session(self, params: Object) -> Object:
        customer = self.get("customer", params.get("customer", ""), "customer")
        if params.get("mode") != "payment":
            raise Refusal("This fake has pages for payments only.", param="mode")
        if not params.get("line_items") or not params.get("success_url"):
            raise Refusal("A page needs line_items and success_url.", param="line_items")
        prices = [line["price_data"] for line in params["line_items"]]
        if len({price["currency"] for price in prices}) != 1:
            raise Refusal("All line items must have the same currency.", param="line_items")
        if any("unit_amount" not in price for price in prices):
            raise Refusal("Give unit_amount.", param="line_items[0][price_data][unit_amount]")
        total = sum(line["price_data"]["unit_amount"] * line.get("quantity", 1) for line in params["line_items"])
        session = self._make(
            "cs",
            "checkout.session",
            {
                "mode": "payment",
                "status": "open",
                "payment_status": "unpaid",
                "payment_intent": None,
                "amount_total": total,
                "currency": prices[0]["currency"],
                "customer": customer["id"],
                "metadata": params.get("metadata", {}),
                "client_reference_id": params.get("client_reference_id"),
                "success_url": params["success_url"],
                "payment_intent_data": params.get("payment_intent_data", {}),
                "line_items": params["line_items"],
            },
        )
        session["url"] = f"https://checkout.example/{session['id']}"
        return session

    def complete_checkout(self, session_id: str, *, card: str = GOOD) -> Object:
        """What the payer does on the page: a good card completes it, another leaves it open for the next try."""
        session = self.get("checkout.session", session_id)
        if session["status"] != "open":
            raise Refusal(f"The page is {session['status']}.")
        method = self.attach(session["customer"], card)
        payment = self._payment(
            {
                "amount": session["amount_total"],
                "currency": session["currency"],
                "customer": session["customer"],
                "payment_method": method,
                **session["payment_intent_data"],
            }
        )
        session["payment_intent"] = payment["id"]
        if payment["status"] == "succeeded":
            session.update(status="complete", payment_status="paid", url=None)
            self._emit("checkout.session.completed", session)
        return session

    def expire_session(self, session_id: str) -> Object:
        session = self.get("checkout.session", session_id)
        if session["status"] != "open":
            raise Refusal(f"Only open pages expire; this one is {session['status']}.")
        session.update(status="expired", url=None)
        self._emit("checkout.session.expired", session)
        return session

    def session(self, session_id: str, params: Object) -> Object:
        session = self.get("checkout.session", session_id)
        if "payment_intent" in params.get("expand", []) and session["payment_intent"]:
            return {**session, "payment_intent": self.get("payment_intent", session["payment_intent"])}
        return session

    # Payments -------------------------------------------------------------------------------------------------------
    def create_payment(self, params: Object) -> Object:
        self.get("customer", params.get("customer", ""), "customer")
        if not (params.get("confirm") and params.get("payment_method")):
            raise Refusal("This fake confirms at once; give confirm and payment_method.", param="confirm")
        method = self.get("payment_method", params["payment_method"], "payment_method")
        if method["customer"] != params["customer"]:
            raise Refusal("The payment method belongs to another customer.", param="payment_method")
        payment = self._payment({name: params[name] for name in _PAYMENT_FIELDS if name in params})
        if payment["last_payment_error"]:
            error = payment["last_payment_error"]
            refusal = Refusal(error["message"], status=402, kind="card_error", code=error["code"])
            refusal.body["error"]["payment_intent"] = payment
            raise refusal
        return payment

    def _payment(self, values: Object) -> Object:
        refusal = self._refusal_of(values["payment_method"])
        payment = self._make(
            "pi",
            "payment_intent",
            {
                "metadata": {},
                "setup_future_usage": None,
                "amount_refunded": 0,
                "status": "requires_payment_method" if refusal else "succeeded",
                "last_payment_error": {"code": refusal[0], "message": refusal[1]} if refusal else None,
                **values,
            },
        )
        self._emit("payment_intent.payment_failed" if refusal else "payment_intent.succeeded", payment)
        return payment

    def pay(self, identifier: str, params: Object | None = None) -> Object:
        method = (params or {}).get("payment_method")
        refusal = self._refusal_of(method) if method else None
        if refusal:
            raise Refusal(refusal[1], status=402, kind="card_error", code=refusal[0])
        return super().pay(identifier)

    # Refunds --------------------------------------------------------------------------------------------------------
    def create_refund(self, params: Object) -> Object:
        payment = self.get("payment_intent", params.get("payment_intent", ""), "payment_intent")
        if payment["status"] != "succeeded":
            raise Refusal("This payment has no successful charge to refund.", code="charge_not_refundable")
        amount = params.get("amount", payment["amount"] - payment["amount_refunded"])
        if not 0 < amount <= payment["amount"] - payment["amount_refunded"]:
            raise Refusal("Refund amount is greater than what is left of the charge.", param="amount")
        payment["amount_refunded"] += amount
        refund = self._make(
            "re",
            "refund",
            {
                "status": "succeeded",
                "failure_reason": None,
                "currency": payment["currency"],
                "metadata": {},
                **params,
                "amount": amount,
            },
        )
        self._emit("refund.created", refund)
        return refund

    def bounce(self, refund_id: str) -> Object:
        """The bank sends the money of a refund back, days later."""
        refund = self.get("refund", refund_id)
        refund.update(status="failed", failure_reason="lost_or_stolen_card")
        self._emit("refund.failed", refund)
        return refund

    # The customer portal --------------------------------------------------------------------------------------------
    def create_portal(self, params: Object) -> Object:
        customer = self.get("customer", params.get("customer", ""), "customer")
        session = self._make("bps", "billing_portal.session", {**params, "customer": customer["id"]})
        session["url"] = f"https://billing.example/{session['id']}"
        return session

    def mark_uncollectible(self, identifier: str) -> Object:
        invoice = self.get("invoice", identifier)
        if invoice["status"] != "open":
            raise Refusal(f"Only an open invoice can be marked uncollectible; this one is {invoice['status']}.")
        invoice.update(status="uncollectible")
        self._emit("invoice.marked_uncollectible", invoice)
        return invoice

    def credit(self, params: Object) -> Object:
        invoice = self.get("invoice", params.get("invoice", ""), "invoice")
        outside = [params.get(name, 0) for name in ("refund_amount", "credit_amount", "out_of_band_amount")]
        if invoice["status"] == "paid" and invoice["amount_paid"] and sum(outside) != params.get("amount", 0):
            raise Refusal(
                "The sum of refund_amount, credit_amount and out_of_band_amount must equal the credit note amount.",
                param="amount",
            )
        if invoice["status"] == "open" and any(outside):
            raise Refusal("An unpaid invoice has nothing to refund.", param="refund_amount")
        return super().credit(params)

    def of_customer(self, kind: str, params: Object, url: str) -> Object:
        customer = params.get("customer")
        return self.page([row for row in self.all(kind) if customer in (None, row["customer"])], params, url)


_PAYMENT_FIELDS = (
    "amount",
    "currency",
    "customer",
    "payment_method",
    "metadata",
    "description",
    "setup_future_usage",
)
