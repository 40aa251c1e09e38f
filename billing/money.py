"""Money as whole nano-units (1e-9 of the currency), and the only rounding in the product.

A price is nano-units per million tokens, a cost is nano-units, and an invoice amount is whole minor units (cents).
Nothing here, or anywhere in `billing`, is a float.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

NANO = 1_000_000_000
TOKENS_PER_PRICE = 1_000_000

# Digits after the point of the currencies that an account may have (ISO 4217).
MINOR_DIGITS = {"USD": 2, "EUR": 2, "GBP": 2, "CHF": 2, "CAD": 2, "AUD": 2, "SEK": 2, "NOK": 2, "DKK": 2, "JPY": 0}
SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}


def divide_half_even(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest whole number, ties to the even one. `denominator` is positive."""
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient % 2):
        quotient += 1
    return quotient


def token_cost_nano(tokens: int, price_nano: int) -> int:
    """What `tokens` cost at `price_nano` per million tokens."""
    return divide_half_even(tokens * price_nano, TOKENS_PER_PRICE)


def nano_per_minor(currency: str) -> int:
    return int(NANO // 10 ** MINOR_DIGITS[currency])


def to_minor(amount_nano: int, currency: str) -> int:
    """Rounded to whole cents: done once, at the invoice line."""
    return divide_half_even(amount_nano, nano_per_minor(currency))


def from_minor(amount_minor: int, currency: str) -> int:
    return amount_minor * nano_per_minor(currency)


def parse_nano(text: str) -> int:
    """`"0.40"` as nano-units; refuses what is not a number or is finer than one nano-unit."""
    try:
        # Decimal reads 1_0 as ten, which nobody means who types it.
        exact = Decimal("" if "_" in text else text) * NANO
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of money.") from None
    if not exact.is_finite() or exact != exact.to_integral_value():
        raise ValueError(f"{text!r} is finer than one billionth; at most 9 decimals are kept.")
    return int(exact)


def to_decimal(amount_nano: int) -> Decimal:
    return Decimal(amount_nano).scaleb(-9)


def format_nano(amount_nano: int, currency: str, *, min_digits: int | None = None) -> str:
    """The exact amount, e.g. `$0.000333`: at least the currency's digits, and no more than it needs."""
    digits = MINOR_DIGITS[currency] if min_digits is None else min_digits
    whole, fraction = divmod(abs(amount_nano), NANO)
    decimals = f"{fraction:09d}".rstrip("0").ljust(digits, "0")
    return _signed(amount_nano, f"{whole:,}" + (f".{decimals}" if decimals else ""), currency)


def format_minor(amount_minor: int, currency: str) -> str:
    digits = MINOR_DIGITS[currency]
    whole, fraction = divmod(abs(amount_minor), 10**digits)
    return _signed(amount_minor, f"{whole:,}" + (f".{fraction:0{digits}d}" if digits else ""), currency)


def _signed(amount: int, text: str, currency: str) -> str:
    symbol = SYMBOLS.get(currency)
    money = f"{symbol}{text}" if symbol else f"{text} {currency}"
    return f"-{money}" if amount < 0 else money
