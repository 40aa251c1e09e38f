"""The payment provider behind one protocol: what we ask of it, and the facts that it tells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Payer:
    """Who pays. `customer_id` is the provider's, empty before it knows them; `tax_id_type` is empty when unknown."""

    organization_id: int
    name: str
    email: str
    address: dict[str, str]
    customer_id: str = ""
    tax_id: str = ""
    tax_id_type: str = ""
    language: str = "en"


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
    """An issued invoice as the provider needs it: a copy, so that no database is touched during the calls."""

    invoice_id: int
    payer: Payer
    number: str
    currency: str
    finalized_at: datetime
    due_at: datetime
    period_start: datetime
    period_end: datetime
    lines: tuple[BilledLine, ...]
    credit_minor: int
    # As the invoice prints it, e.g. `VAT 19 %`; the note says why none is charged.
    tax_label: str
    tax_minor: int
    tax_note: str
    total_minor: int


@dataclass(frozen=True)
class PushedInvoice:
    external_id: str
    customer_id: str
    hosted_url: str = ""


@dataclass(frozen=True)
class BilledCreditNote:
    credit_note_id: int
    number: str
    # The provider's id of the invoice.
    invoice_external_id: str
    total_minor: int
    reason: str
    # The invoice was paid, so that the money goes back.
    is_refund: bool


@dataclass(frozen=True)
class CheckoutOrder:
    """A purchase of credit on the provider's page. `keeps_card` asks the payer to let us charge the card again."""

    top_up_id: int
    payer: Payer
    currency: str
    amount_minor: int
    tax_minor: int
    tax_label: str
    description: str
    keeps_card: bool
    return_url: str


@dataclass(frozen=True)
class OpenedCheckout:
    session_id: str
    customer_id: str
    url: str


@dataclass(frozen=True)
class CardCharge:
    """A charge of a kept card, without the payer there."""

    top_up_id: int
    payer: Payer
    payment_method_id: str
    currency: str
    total_minor: int
    description: str


@dataclass(frozen=True)
class RefundOrder:
    refund_id: int
    payment_id: str
    total_minor: int


Subject = tuple[Literal["invoice", "checkout", "payment", "refund"], str]


@dataclass(frozen=True)
class InvoiceFact:
    """How an invoice stands at the provider now. `invoice_id` is ours, from what we wrote on it."""

    external_id: str
    invoice_id: int | None
    status: Literal["open", "paid", "void", "uncollectible"]
    # The same in every event about this payment.
    payment_id: str
    paid_minor: int
    currency: str


@dataclass(frozen=True)
class TopUpFact:
    """How a purchase of credit stands at the provider now."""

    top_up_id: int | None
    state: Literal["open", "paid", "failed", "expired"]
    session_id: str
    payment_id: str
    # Of all that was paid, tax included.
    total_minor: int
    currency: str
    payment_method_id: str = ""
    customer_id: str = ""
    failure: str = ""


@dataclass(frozen=True)
class RefundFact:
    refund_id: int | None
    external_id: str
    state: Literal["pending", "succeeded", "failed"]
    failure: str = ""


Fact = InvoiceFact | TopUpFact | RefundFact


@dataclass(frozen=True)
class ProviderEvent:
    """A verified event. `subject` is what it tells of, None for a type that we do nothing with."""

    provider: str
    event_id: str
    type: str
    payload: dict[str, Any]  # the provider's JSON, kept as it came


class PaymentGateway(Protocol):
    """Every act is safe to repeat, also after a crash half-way: it looks for its result by our id before it creates.

    All raise PaymentProviderError, which says whether a repeat may succeed.
    """

    name: str

    def push_invoice(self, invoice: BilledInvoice) -> PushedInvoice:
        """Create, finalize and send the invoice at the provider."""
        ...

    def void_invoice(self, external_id: str) -> None: ...

    def give_up_invoice(self, external_id: str) -> None:
        """Mark it uncollectible: the provider stops asking for it."""
        ...

    def pay_invoice(self, external_id: str, payment_method_id: str, key: str) -> None:
        """Try a kept card on an open invoice; a refusal raises, and an event tells of success."""
        ...

    def push_credit_note(self, note: BilledCreditNote) -> str:
        """Returns the provider's id."""
        ...

    def open_checkout(self, order: CheckoutOrder) -> OpenedCheckout: ...

    def charge_card(self, charge: CardCharge) -> TopUpFact:
        """A refused card is a fact in state failed, not an error."""
        ...

    def refund(self, order: RefundOrder) -> RefundFact: ...

    def portal_link(self, payer: Payer, return_url: str) -> str:
        """The page where the payer changes cards and reads receipts; the link is for them alone and soon ends."""
        ...

    def read_event(self, body: bytes, signature: str) -> ProviderEvent:
        """Verify a webhook's raw body. Raises EventRefused."""
        ...

    def subject_of(self, event_type: str, payload: dict[str, Any]) -> Subject | None:
        """What a kept event tells of; None for a type that we do nothing with."""
        ...

    def look_up(self, subject: Subject) -> Fact | None:
        """How the subject stands now, whatever the event said of it; None when the provider does not know it."""
        ...
