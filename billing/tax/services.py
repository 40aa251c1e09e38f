"""New versions of tax rates; an old one is never edited."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from django.db import transaction
from django.utils.translation import gettext as _

from billing.errors import InvalidTaxRate
from billing.tax.models import TaxRate


@transaction.atomic
def set_rate(*, country: str, name: str, percent: Decimal, effective_from: date, actor_id: int | None) -> TaxRate:
    """A country's rate from a day on. A repeat with the same figures returns it; others for the day are refused.

    Zero percent ends the tax there. Issued invoices keep theirs.
    """
    country = country.upper()
    if len(country) != 2 or not country.isascii() or not country.isalpha():
        raise InvalidTaxRate(
            "country", _("%(country)s is not a country code; use two letters such as DE.") % {"country": repr(country)}
        )
    if not 0 <= percent < 100 or percent != round(percent, 4):
        raise InvalidTaxRate(
            "percent", _("%(percent)s is no rate; use 0 to below 100 with at most 4 decimals.") % {"percent": percent}
        )
    rate, is_new = TaxRate.objects.get_or_create(
        country=country,
        effective_from=effective_from,
        defaults={"name": name, "percent": percent, "actor_id": actor_id},
    )
    if not is_new and (rate.name, rate.percent) != (name, percent):
        raise InvalidTaxRate(
            "effective_from",
            _("%(country)s already has a rate from %(effective_from)s; pick another day.")
            % {"country": country, "effective_from": effective_from},
        )
    return rate
