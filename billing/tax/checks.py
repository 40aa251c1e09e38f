"""Asks the register whether tax numbers of the Union exist, and keeps each answer as evidence."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef

from billing.accounts.models import BillingAccount
from billing.accounts.selectors import account_of
from billing.tax.ids import UNION, parse
from billing.tax.models import TaxIdCheck
from billing.tax.vies import ViesClient

logger = logging.getLogger(__name__)

# A number may lapse, so it is asked for again so long after the last answer.
ASKED_AGAIN_AFTER = timedelta(days=30)


def is_configured() -> bool:
    return bool(settings.VIES_URL)


def last_check(tax_id: str) -> TaxIdCheck | None:
    """The newest answer about this very number; None without one, and where the register is not asked at all."""
    return TaxIdCheck.objects.filter(tax_id=tax_id).order_by("-id").first() if is_configured() and tax_id else None


def check_tax_id(*, organization_id: int, now: datetime, client: ViesClient | None = None) -> TaxIdCheck | None:
    """Ask for the organization's number, unless that was done lately; None where there is nothing to ask.

    Raises RegisterUnavailable: until it answers, the form of the number counts.
    """
    account = account_of(organization_id)
    if not is_configured() or account.country not in UNION or not account.tax_id:
        return None
    last = last_check(account.tax_id)
    if last is not None and now < last.checked_at + ASKED_AGAIN_AFTER:
        return last
    client = client or ViesClient(settings.VIES_URL, asker=_asker())
    answer = client.check(account.tax_id)
    check = TaxIdCheck.objects.create(
        organization_id=organization_id,
        tax_id=account.tax_id,
        is_valid=answer.is_valid,
        holder=answer.name,
        consultation=answer.consultation,
        checked_at=now,
    )
    logger.info("tax_id_checked organization_id=%s is_valid=%s", organization_id, answer.is_valid)
    return check


def _asker() -> str:
    """The issuer's own number, where it has one of the Union."""
    if settings.INVOICE_ISSUER_COUNTRY not in UNION:
        return ""
    found = parse(settings.INVOICE_ISSUER_COUNTRY, settings.INVOICE_ISSUER_TAX_ID)
    return found.value if found else ""


def organizations_to_check(*, now: datetime) -> list[int]:
    """Accounts with a number of the Union that nobody asked for lately."""
    if not is_configured():
        return []
    fresh = TaxIdCheck.objects.filter(tax_id=OuterRef("tax_id"), checked_at__gt=now - ASKED_AGAIN_AFTER)
    accounts = BillingAccount.objects.filter(~Exists(fresh), country__in=UNION).exclude(tax_id="")
    return list(accounts.order_by("organization_id").values_list("organization_id", flat=True))
