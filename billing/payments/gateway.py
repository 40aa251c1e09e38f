"""The payment provider behind one small protocol, and the form of it that needs no provider: payloads in files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from billing.errors import EventRefused
from billing.payments import payloads


@dataclass(frozen=True)
class BilledLine:
    """One line of an invoice, in whole cents. `tokens` x `unit_price_nano` per million says how it came about."""

    position: int
    description: str
    tokens: int
    unit_price_nano: int
    amount_minor: int


@dataclass(frozen=True)
class BilledInvoice:
    """A final invoice as the provider needs it: a copy, so that no database is touched during the calls."""

    invoice_id: int
    organization_id: int
    number: str
    currency: str
    email: str
    name: str
    address: dict[str, str]
    # The provider's id for the payer, empty before the first push.
    customer_id: str
    finalized_at: datetime
    due_at: datetime
    period_start: datetime
    period_end: datetime
    lines: tuple[BilledLine, ...]
    credit_minor: int
    total_minor: int


@dataclass(frozen=True)
class PushedInvoice:
    external_id: str
    customer_id: str
    hosted_url: str = ""


@dataclass(frozen=True)
class PaidInvoice:
    """What an event says was paid. `payment_id` is the same in every event about this payment."""

    external_id: str
    invoice_id: int | None
    payment_id: str
    amount_minor: int
    currency: str


@dataclass(frozen=True)
class ProviderEvent:
    """A verified event; `paid` is set on those that tell of a paid invoice."""

    provider: str
    event_id: str
    type: str
    payload: dict[str, Any]  # the provider's JSON, kept as it came
    paid: PaidInvoice | None


class PaymentGateway(Protocol):
    name: str

    def push_invoice(self, invoice: BilledInvoice) -> PushedInvoice:
        """Create, finalize and send the invoice at the provider. Safe to repeat, also after a crash half-way.

        Raises PaymentProviderError.
        """
        ...

    def read_event(self, body: bytes, signature: str) -> ProviderEvent:
        """Verify a webhook's raw body. Raises EventRefused."""
        ...


class FileGateway:
    """Writes the requests that Stripe would get, one file an invoice: a dry run, and the default without a key."""

    name = "file"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def push_invoice(self, invoice: BilledInvoice) -> PushedInvoice:
        document = {
            "provider": "stripe",
            "api_version": payloads.API_VERSION,
            "requests": [request.as_json() for request in payloads.requests_of(invoice)],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{invoice.number}.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        unfinished.replace(path)
        return PushedInvoice(external_id=path.name, customer_id="")

    def read_event(self, body: bytes, signature: str) -> ProviderEvent:
        raise EventRefused("No payment provider is configured; set STRIPE_SECRET_KEY and STRIPE_WEBHOOK_SECRET.")
