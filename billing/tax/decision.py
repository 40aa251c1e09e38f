"""Which tax an invoice bears: pure, from who sells to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from billing.money import divide_half_even
from billing.tax.ids import UNION
from billing.tax.models import TaxKind


class Rate(NamedTuple):
    name: str
    percent: Decimal


@dataclass(frozen=True)
class Buyer:
    """`country` empty: not told, and treated as the issuer's. `has_tax_id`: a number of a valid form."""

    country: str
    has_tax_id: bool
    exemption: str = ""


@dataclass(frozen=True)
class TaxDecision:
    """`name` is what the invoice calls the tax, or why an exempt buyer pays none."""

    kind: TaxKind
    name: str = ""
    percent: Decimal = Decimal(0)

    def tax_minor(self, base_minor: int) -> int:
        """Tax on a whole amount, rounded once, half to even."""
        numerator = Decimal(base_minor) * self.percent
        return divide_half_even(int(numerator.scaleb(4)), 100 * 10**4)


NO_TAX = TaxDecision(TaxKind.NONE)


def decide(issuer_country: str, buyer: Buyer, rates: Mapping[str, Rate]) -> TaxDecision:
    """`rates` are those in force, by country. In this order:

    1. an issuer without a country charges no tax; an exempt buyer pays none;
    2. at home the home rate;
    3. within the European Union a business with a tax number accounts for the tax itself, anyone else pays the rate of
       their own country;
    4. elsewhere the rate of the buyer's country, where we have one.
    """
    if not issuer_country:
        return NO_TAX
    country = buyer.country or issuer_country
    if buyer.exemption:
        return TaxDecision(TaxKind.EXEMPT, buyer.exemption[:40])
    is_union_trade = country != issuer_country and {country, issuer_country} <= UNION
    rate = rates.get(country)
    if is_union_trade and buyer.has_tax_id:
        return TaxDecision(TaxKind.REVERSE_CHARGE, rate.name if rate else "VAT")
    if rate is None:
        return NO_TAX
    return TaxDecision(TaxKind.CHARGED, rate.name, rate.percent)
