"""The gateway without a provider: a dry run, and the default without a key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from billing.errors import EventRefused, PaymentsNotConfigured
from billing.payments import payloads
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
)


class FileGateway:
    """Writes the requests that Stripe would get, one file an act. Takes no payments."""

    name = "file"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def push_invoice(self, invoice: BilledInvoice) -> PushedInvoice:
        return PushedInvoice(self._write(invoice.number, payloads.requests_of(invoice)), customer_id="")

    def void_invoice(self, external_id: str) -> None:
        self._write(f"{Path(external_id).stem}-void", [payloads.void_request(payloads.INVOICE)])

    def give_up_invoice(self, external_id: str) -> None:
        self._write(f"{Path(external_id).stem}-uncollectible", [payloads.give_up_request(payloads.INVOICE)])

    def pay_invoice(self, external_id: str, payment_method_id: str, key: str) -> None:
        raise PaymentsNotConfigured

    def push_credit_note(self, note: BilledCreditNote) -> str:
        return self._write(note.number, [payloads.credit_note_request(note, payloads.INVOICE)])

    def open_checkout(self, order: CheckoutOrder) -> OpenedCheckout:
        raise PaymentsNotConfigured

    def charge_card(self, charge: CardCharge) -> Any:
        raise PaymentsNotConfigured

    def refund(self, order: RefundOrder) -> RefundFact:
        raise PaymentsNotConfigured

    def portal_link(self, payer: Payer, return_url: str) -> str:
        raise PaymentsNotConfigured

    def read_event(self, body: bytes, signature: str) -> ProviderEvent:
        raise EventRefused("No payment provider is configured; set STRIPE_SECRET_KEY and STRIPE_WEBHOOK_SECRET.")

    def subject_of(self, event_type: str, payload: dict[str, Any]) -> Subject | None:
        return None

    def look_up(self, subject: Subject) -> Fact | None:
        raise PaymentsNotConfigured

    def _write(self, name: str, requests: Iterable[payloads.Request]) -> str:
        """Whole or not at all: the name appears when the file is complete."""
        document = {
            "provider": "stripe",
            "api_version": payloads.API_VERSION,
            "requests": [request.as_json() for request in requests],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        unfinished.replace(path)
        return path.name
