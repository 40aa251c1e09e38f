"""Which tax applies to an organization now."""

from __future__ import annotations

from datetime import date

from django.conf import settings

from billing.accounts.models import BillingAccount
from billing.errors import InvalidAccount
from billing.tax.checks import last_check
from billing.tax.decision import Buyer, Rate, TaxDecision, decide
from billing.tax.ids import parse
from billing.tax.models import TaxRate


def rates_in_force(on: date) -> dict[str, TaxRate]:
    """The version of each country that holds on a day."""
    rows = TaxRate.objects.filter(effective_from__lte=on).order_by("country", "-effective_from")
    return {row.country: row for row in rows.distinct("country")}


def all_rates() -> list[TaxRate]:
    """Every version, by country, newest first."""
    return list(TaxRate.objects.order_by("country", "-effective_from"))


def tax_of(account: BillingAccount, *, on: date) -> TaxDecision:
    """What a sale to this account bears on a day; the issuer is the service's own."""
    rates = {country: Rate(row.name, row.percent) for country, row in rates_in_force(on).items()}
    buyer = Buyer(account.country, _has_tax_id(account), account.tax_exemption)
    return decide(settings.INVOICE_ISSUER_COUNTRY, buyer, rates)


def _has_tax_id(account: BillingAccount) -> bool:
    """Numbers from before they were checked may be of no valid form: these count as none, like those that the register
    does not know. Until it has answered, the form counts."""
    try:
        if parse(account.country, account.tax_id) is None:
            return False
    except InvalidAccount:
        return False
    check = last_check(account.tax_id)
    return check is None or check.is_valid
