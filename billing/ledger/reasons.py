"""Why billing itself booked something: a code and what it is about, such as `@invoice_tax:17`. Pages find the words.

Everything else that stands as a reason was typed by a person and is shown as it is.
"""

from __future__ import annotations

from enum import StrEnum

LENGTH = 300


class Reason(StrEnum):
    """With what it is about, where it is about anything."""

    FREE_CREDIT = "@free_credit"
    CREDIT_BOUGHT = "@credit_bought"
    AUTO_RECHARGE = "@auto_recharge"
    CREDIT_EXPIRED = "@credit_expired"
    # The code, and what it says of itself.
    PROMO_CODE = "@promo_code"
    # The purchase's number.
    TOP_UP_TAX = "@top_up_tax"
    # The invoice's id; it has no number yet.
    INVOICE_ROUNDING = "@invoice_rounding"
    INVOICE_FEES = "@invoice_fees"
    INVOICE_TAX = "@invoice_tax"
    # The invoice's number.
    INVOICE_PAYMENT = "@invoice_payment"
    # Its number, and why it was made.
    CREDIT_NOTE = "@credit_note"
    # The engine's receipt.
    RECEIPT = "@receipt"
    # Tokens of the month before.
    VOLUME = "@volume"

    def about(self, subject: object, *, length: int = LENGTH) -> str:
        """As it is stored."""
        return f"{self}:{subject}"[:length]


def parse_reason(text: str) -> tuple[Reason | None, str]:
    """The code and what it is about; None for what a person typed, which is then given back whole."""
    code, _separator, subject = text.partition(":")
    try:
        return Reason(code), subject
    except ValueError:
        return None, text
