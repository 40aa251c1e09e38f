"""Reads of billing accounts."""

from __future__ import annotations

from collections.abc import Collection

from billing.accounts.models import BillingAccount
from billing.errors import UnknownAccount


def account_of(organization_id: int) -> BillingAccount:
    account = BillingAccount.objects.filter(organization_id=organization_id).first()
    if account is None:
        raise UnknownAccount(organization_id)
    return account


def accounts_of(organization_ids: Collection[int]) -> dict[int, BillingAccount]:
    """By the organization's id. One query."""
    return {row.organization_id: row for row in BillingAccount.objects.filter(organization_id__in=organization_ids)}


def currencies_of(organization_ids: Collection[int]) -> dict[int, str]:
    """The currency that each pays in, by its id. One query."""
    accounts = BillingAccount.objects.filter(organization_id__in=organization_ids)
    return dict(accounts.values_list("organization_id", "currency"))
