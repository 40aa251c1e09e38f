"""Reads of billing accounts."""

from __future__ import annotations

from billing.accounts.models import BillingAccount
from billing.errors import UnknownAccount


def account_of(organization_id: int) -> BillingAccount:
    account = BillingAccount.objects.filter(organization_id=organization_id).first()
    if account is None:
        raise UnknownAccount(organization_id)
    return account
