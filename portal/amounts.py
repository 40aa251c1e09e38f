"""Numbers and money as people type them, with the signs of the reader's language or of the other one."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.utils.formats import get_format
from django.utils.translation import gettext_lazy as _

from billing.money import parse_nano, to_decimal

SIGNS = "$€£"


def plain_number(text: str) -> str:
    """`"1.250,50"` and `"1,250.50"` as `"1250.50"`; what is no number is left for the caller to refuse.

    One sign alone parts thousands where the reader's language does so and three digits follow: in German 1.250 is a
    thousand and more, in English it is not. Everywhere else it is the decimal sign: 25,50 is never two thousand.
    """
    text = "".join(text.split()).strip(SIGNS)
    signs = [sign for sign in text if sign in ".,"]
    if not signs:
        return text
    decimal = signs[-1]
    if signs.count(decimal) == 1 and (len(set(signs)) == 2 or not _parts_thousands(text, decimal)):
        return text.replace("." if decimal == "," else ",", "").replace(decimal, ".")
    if len(set(signs)) == 1 and all(len(group) == 3 for group in text.split(decimal)[1:]):
        return text.replace(decimal, "")
    return text


def _parts_thousands(text: str, sign: str) -> bool:
    head, _sign, tail = text.partition(sign)
    return sign == get_format("THOUSAND_SEPARATOR") and len(tail) == 3 and head.lstrip("-") not in ("", "0")


def read_nano(text: str) -> int:
    """An amount of money in nano-units. Raises ValidationError."""
    plain = plain_number(text)
    try:
        return parse_nano(plain)
    except ValueError:
        digits = plain.partition(".")[2]
        if digits.isdecimal() and len(digits) > 9:
            raise ValidationError(_("Enter at most %(digits)s decimals.") % {"digits": 9}) from None
        raise ValidationError(_("%(text)s is not an amount of money.") % {"text": repr(text)}) from None


def typed_amount(amount_nano: int) -> str:
    """The amount as the reader types it: no currency, no trailing zeros. `read_nano` reads the same."""
    plain = f"{to_decimal(amount_nano):f}".rstrip("0").rstrip(".")
    return plain.replace(".", get_format("DECIMAL_SEPARATOR"))
