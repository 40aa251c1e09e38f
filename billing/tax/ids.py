"""Tax numbers: which form a country's has, what Stripe calls it, and whether its check digits hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from django.utils.translation import gettext as _

from billing.errors import InvalidAccount

# The form of each member's number after its prefix. The union's rules on reverse charge hold among these.
_UNION = {
    "AT": r"U\d{8}",
    "BE": r"[01]\d{9}",
    "BG": r"\d{9,10}",
    "CY": r"\d{8}[A-Z]",
    "CZ": r"\d{8,10}",
    "DE": r"\d{9}",
    "DK": r"\d{8}",
    "EE": r"\d{9}",
    "ES": r"[A-Z0-9]\d{7}[A-Z0-9]",
    "FI": r"\d{8}",
    "FR": r"[A-HJ-NP-Z0-9]{2}\d{9}",
    "GR": r"\d{9}",
    "HR": r"\d{11}",
    "HU": r"\d{8}",
    "IE": r"\d[A-Z0-9+*]\d{5}[A-Z]{1,2}",
    "IT": r"\d{11}",
    "LT": r"(?:\d{9}|\d{12})",
    "LU": r"\d{8}",
    "LV": r"\d{11}",
    "MT": r"\d{8}",
    "NL": r"\d{9}B\d{2}",
    "PL": r"\d{10}",
    "PT": r"\d{9}",
    "RO": r"\d{2,10}",
    "SE": r"\d{12}",
    "SI": r"\d{8}",
    "SK": r"\d{10}",
}
UNION = frozenset(_UNION)
# Greece writes EL before its numbers.
_PREFIXES = {"GR": "EL"}


@dataclass(frozen=True)
class TaxId:
    """`stripe_type` is empty for a country that we do not know: the number is kept, and not sent."""

    value: str
    stripe_type: str


@dataclass(frozen=True)
class _Form:
    stripe_type: str
    pattern: str
    example: str
    has_valid_digits: Callable[[str], bool] = lambda value: True


def _digits(value: str) -> list[int]:
    return [int(character) for character in value if character.isdigit()]


def _german(value: str) -> bool:
    """ISO 7064, MOD 11,10."""
    *body, check = _digits(value)
    product = 10
    for digit in body:
        total = (digit + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == check


def _british(value: str) -> bool:
    numbers = _digits(value)[:9]
    weighted = sum(weight * digit for weight, digit in zip(range(8, 1, -1), numbers, strict=False))
    rest = (weighted + 10 * numbers[7] + numbers[8]) % 97
    return rest in (0, 42)


def _australian(value: str) -> bool:
    numbers = _digits(value)
    weights = (10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19)
    return sum(w * d for w, d in zip(weights, [numbers[0] - 1, *numbers[1:]], strict=True)) % 89 == 0


def _swiss(value: str) -> bool:
    numbers = _digits(value)[:9]
    weighted = sum(weight * digit for weight, digit in zip((5, 4, 3, 2, 7, 6, 5, 4), numbers, strict=False))
    return (11 - weighted % 11) % 11 == numbers[8]


def _norwegian(value: str) -> bool:
    numbers = _digits(value)
    weighted = sum(weight * digit for weight, digit in zip((3, 2, 7, 6, 5, 4, 3, 2), numbers, strict=False))
    return (11 - weighted % 11) % 11 == numbers[8]


def _dutch(value: str) -> bool:
    """The old check of nine digits, or MOD 97 of the whole number, which sole traders have since 2020."""
    numbers = _digits(value)
    weighted = sum(weight * digit for weight, digit in zip(range(9, 1, -1), numbers[:8], strict=True))
    spelled = "".join(character if character.isdigit() else str(ord(character) - 55) for character in value)
    return weighted % 11 == numbers[8] or int(spelled) % 97 == 1


def _french(value: str) -> bool:
    """The key of a number that has digits for one; letters in the key have no public rule."""
    key, siren = value[2:4], value[4:]
    return not key.isdigit() or (12 + 3 * (int(siren) % 97)) % 97 == int(key)


def _union_form(country: str) -> _Form:
    prefix = _PREFIXES.get(country, country)
    checks = {"DE": _german, "NL": _dutch, "FR": _french}
    example = {"DE": "DE136695976", "NL": "NL004495445B01", "FR": "FR40303265045", "AT": "ATU12345678"}
    return _Form(
        "eu_vat",
        prefix + _UNION[country],
        example.get(country, f"{prefix} and {_UNION[country]}"),
        checks.get(country, lambda value: True),
    )


_FORMS = {
    **{country: _union_form(country) for country in _UNION},
    "GB": _Form("gb_vat", r"GB(?:\d{9}|\d{12})", "GB980780684", _british),
    "CH": _Form("ch_vat", r"CHE\d{9}(?:MWST|TVA|IVA)", "CHE-107.787.577 MWST", _swiss),
    "NO": _Form("no_vat", r"\d{9}MVA", "995525828MVA", _norwegian),
    "AU": _Form("au_abn", r"\d{11}", "51 824 753 556", _australian),
    "US": _Form("us_ein", r"\d{9}", "12-3456789"),
    "CA": _Form("ca_gst_hst", r"\d{9}RT\d{4}", "123456789RT0001"),
    "JP": _Form("jp_trn", r"T\d{13}", "T1234567890123"),
}


def parse(country: str, text: str) -> TaxId | None:
    """The number in its written form; None when there is none. Raises InvalidAccount on one that cannot exist.

    Whether the number is registered, only the country's office knows: this is the check of its form.
    """
    value = re.sub(r"[\s.\-/]", "", text).upper()
    if not value:
        return None
    form = _FORMS.get(country)
    if form is None:
        return TaxId(text.strip(), "")
    prefix = _PREFIXES.get(country, country)
    if form.stripe_type == "eu_vat" and not value.startswith(prefix):
        value = prefix + value
    if not re.fullmatch(form.pattern, value, flags=re.ASCII):
        raise InvalidAccount(
            "tax_id",
            _("%(text)s is no tax number of %(country)s; one looks like %(example)s.")
            % {"text": repr(text), "country": country, "example": form.example},
        )
    if not form.has_valid_digits(value):
        raise InvalidAccount(
            "tax_id",
            _("%(text)s is no tax number of %(country)s: its check digits do not fit.")
            % {"text": repr(text), "country": country},
        )
    return TaxId(value, form.stripe_type)
