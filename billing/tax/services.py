"""New versions of tax rates; an old one is never edited."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from django.db import transaction

from billing.errors import InvalidTaxRate
from billing.tax.models import TaxRate


@transaction.atomic
def set_rate(*, country: str, name: str, percent: Decimal, effective_from: date, actor_id: int | None) -> TaxRate:
    """A country's rate from a day on. A repeat with the same figures returns it; others for the day are refused.

    Zero percent ends the tax there. Issued invoices keep theirs.
    """
    country = country.upper()
    if len(country) != 2 or not country.isascii() or not country.isalpha():
        raise InvalidTaxRate("country", f"{country!r} is not a country code; use two letters such as DE.")
    if not 0 <= percent < 100 or percent != round(percent, 4):
        raise InvalidTaxRate("percent", f"{percent} is no rate; use 0 to below 100 with at most 4 decimals.")
    rate, is_new = TaxRate.objects.get_or_create(
        country=country,
        effective_from=effective_from,
        defaults={"name": name, "percent": percent, "actor_id": actor_id},
    )
    if not is_new and (rate.name, rate.percent) != (name, percent):
        raise InvalidTaxRate("effective_from", f"{country} already has a rate from {effective_from}; pick another day.")
    return rate
