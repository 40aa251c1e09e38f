"""What an organization pays from, and in which order: its grants first, then what it may owe.

`lock_wallets` is the one way to move an organization's money: it takes the balance rows in ascending order of the
organization, so that two callers with overlapping batches wait for each other and never deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db import connection

from billing.errors import UnknownAccount
from billing.ledger.models import AccountKind
from billing.ledger.posting import Entry, revenue_entries


@dataclass(slots=True)
class GrantLeft:
    grant_id: int
    remaining_nano: int
    expires_at: datetime | None


@dataclass(slots=True)
class Wallet:
    """A locked organization. `grants` are in burn order; charging uses them up in memory as it makes the entries."""

    organization_id: int
    currency: str
    credit_limit_nano: int
    accounts: dict[AccountKind, int]
    grants: list[GrantLeft] = field(default_factory=list)

    @property
    def may_owe(self) -> bool:
        return self.credit_limit_nano > 0

    def charge(self, amount_nano: int, *, at: datetime) -> tuple[Entry, ...]:
        """Entries that pay `amount_nano` for a request begun `at`: burnt grants, then the receivable.

        A prepaid organization never owes: what its credit does not cover (a hold that was too small) the house absorbs.
        """
        entries: list[Entry] = []
        rest = amount_nano
        for grant in self.grants:
            if rest == 0:
                break
            if grant.remaining_nano == 0 or (grant.expires_at is not None and grant.expires_at <= at):
                continue
            burnt = min(rest, grant.remaining_nano)
            grant.remaining_nano -= burnt
            rest -= burnt
            entries.append(Entry(self.accounts[AccountKind.CREDIT], -burnt, grant.grant_id))
        if rest:
            payer = AccountKind.RECEIVABLE if self.may_owe else AccountKind.ABSORBED
            entries.append(Entry(self.accounts[payer], -rest))
        return revenue_entries(entries, self.accounts[AccountKind.REVENUE])


_LOCK = """
SELECT balance.organization_id, account.currency, account.credit_limit_nano
  FROM billing_organization_balance balance JOIN billing_account account USING (organization_id)
 WHERE balance.organization_id = ANY(%s::bigint[])
 ORDER BY balance.organization_id FOR NO KEY UPDATE OF balance
"""
_ACCOUNTS = """
SELECT organization_id, currency, kind, id FROM billing_ledger_account
 WHERE organization_id = ANY(%s::bigint[]) OR organization_id IS NULL
"""
_GRANTS = """
SELECT credit.organization_id, credit.id, balance.remaining_nano, credit.expires_at
  FROM billing_credit_grant credit JOIN billing_grant_balance balance ON balance.grant_id = credit.id
 WHERE credit.organization_id = ANY(%s::bigint[]) AND balance.remaining_nano > 0
 ORDER BY credit.organization_id, credit.priority, credit.expires_at NULLS LAST, credit.id
"""


def lock_wallets(organization_ids: Iterable[int]) -> dict[int, Wallet]:
    """Lock and load, in the caller's transaction. The grants are read after the lock, so nobody else can burn them."""
    ids = sorted(set(organization_ids))
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [ids])
        wallets = {row[0]: Wallet(row[0], row[1], row[2], {}) for row in cursor.fetchall()}
        for organization_id in ids:
            if organization_id not in wallets:
                raise UnknownAccount(organization_id)
        cursor.execute(_ACCOUNTS, [ids])
        for organization_id, currency, kind, account_id in cursor.fetchall():
            owners = [wallets[organization_id]] if organization_id is not None else wallets.values()
            for wallet in owners:
                if wallet.currency == currency:
                    wallet.accounts[AccountKind(kind)] = account_id
        cursor.execute(_GRANTS, [ids])
        for organization_id, grant_id, remaining_nano, expires_at in cursor.fetchall():
            wallets[organization_id].grants.append(GrantLeft(grant_id, remaining_nano, expires_at))
    return wallets


def lock_wallet(organization_id: int) -> Wallet:
    return lock_wallets([organization_id])[organization_id]
