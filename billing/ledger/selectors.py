"""Balances. Positive is the organization's: credit it has, less what it owes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import Sum
from django.db.models.expressions import RawSQL

from billing.errors import UnknownAccount
from billing.ledger.models import CreditGrant, LedgerEntry, OrganizationBalance
from billing.usage.models import RecordStatus, UsageRecord


@dataclass(frozen=True)
class Balance:
    """Everything that decides whether a call may run, from one statement."""

    organization_id: int
    currency: str
    credit_nano: int
    receivable_nano: int
    credit_limit_nano: int
    held_nano: int
    # Credit past its end that the expiry task has not taken back yet.
    lapsed_nano: int

    @property
    def balance_nano(self) -> int:
        return self.credit_nano + self.receivable_nano

    @property
    def available_nano(self) -> int:
        return self.balance_nano - self.lapsed_nano + self.credit_limit_nano - self.held_nano


_BALANCES = """
SELECT balance.organization_id, account.currency, balance.credit_nano, balance.receivable_nano,
       account.credit_limit_nano,
       COALESCE((SELECT SUM(hold_nano) FROM billing_usage_record record
                  WHERE record.organization_id = balance.organization_id AND record.status = 'started'), 0)::bigint,
       COALESCE((SELECT SUM(grant_balance.remaining_nano)
                   FROM billing_credit_grant credit JOIN billing_grant_balance grant_balance
                        ON grant_balance.grant_id = credit.id
                  WHERE credit.organization_id = balance.organization_id AND grant_balance.remaining_nano > 0
                    AND credit.expires_at <= COALESCE(%(now)s, now())), 0)::bigint
  FROM billing_organization_balance balance JOIN billing_account account USING (organization_id)
 WHERE %(ids)s::bigint[] IS NULL OR balance.organization_id = ANY(%(ids)s::bigint[])
 ORDER BY balance.organization_id
"""


def balances(organization_ids: list[int] | None = None, *, now: datetime | None = None) -> list[Balance]:
    """The balances of some or of all organizations, in one query."""
    with connection.cursor() as cursor:
        cursor.execute(_BALANCES, {"ids": organization_ids, "now": now})
        return [Balance(*row) for row in cursor.fetchall()]


def balance(organization_id: int, *, now: datetime | None = None) -> Balance:
    found = balances([organization_id], now=now)
    if not found:
        raise UnknownAccount(organization_id)
    return found[0]


def balance_nano(organization_id: int) -> int:
    row = OrganizationBalance.objects.filter(organization_id=organization_id).first()
    if row is None:
        raise UnknownAccount(organization_id)
    return row.credit_nano + row.receivable_nano


def held_nano(organization_id: int) -> int:
    """Σ hold of the requests that are running."""
    started = UsageRecord.objects.filter(organization_id=organization_id, status=RecordStatus.STARTED)
    return started.aggregate(total=Sum("hold_nano"))["total"] or 0


def available_nano(organization_id: int, *, now: datetime | None = None) -> int:
    """What a new call may hold: balance without lapsed credit, plus credit limit, less what running calls hold."""
    return balance(organization_id, now=now).available_nano


@dataclass(frozen=True)
class GrantRow:
    grant_id: int
    kind: str
    reason: str
    amount_nano: int
    remaining_nano: int
    expires_at: datetime | None
    created_at: datetime


def grants(organization_id: int) -> list[GrantRow]:
    """All grants in burn order, with what is left of each."""
    rows = CreditGrant.objects.filter(organization_id=organization_id).select_related("balance")
    ordered = sorted(
        rows, key=lambda row: (row.priority, row.expires_at is None, row.expires_at or row.created_at, row.id)
    )
    return [
        GrantRow(
            row.id, row.kind, row.reason, row.amount_nano, row.balance.remaining_nano, row.expires_at, row.created_at
        )
        for row in ordered
    ]


@dataclass(frozen=True)
class StatementRow:
    entry_id: int
    kind: str
    key: str
    reason: str
    amount_nano: int
    created_at: datetime


# From each account's own end of its index: PostgreSQL would read all entries of both to order them together.
_NEWEST_ENTRIES = """
SELECT entry.id FROM billing_ledger_account account
 CROSS JOIN LATERAL (
    SELECT id FROM billing_ledger_entry
     WHERE account_id = account.id AND (%s::bigint IS NULL OR id < %s) ORDER BY id DESC LIMIT %s
 ) entry
 WHERE account.organization_id = %s ORDER BY entry.id DESC LIMIT %s
"""


def statement(organization_id: int, *, before: int | None = None, limit: int = 50) -> list[StatementRow]:
    """The organization's entries, newest first; `before` is the last entry id of the page above."""
    ids = RawSQL(_NEWEST_ENTRIES, [before, before, limit, organization_id, limit])
    entries = LedgerEntry.objects.filter(id__in=ids).select_related("transaction")
    return [
        StatementRow(
            entry.id,
            entry.transaction.kind,
            entry.transaction.key,
            entry.transaction.reason,
            entry.amount_nano,
            entry.transaction.created_at,
        )
        for entry in entries.order_by("-id")
    ]


def house_totals() -> dict[tuple[str, str], int]:
    """Σ entries of each house account by (kind, currency): a query over the facts, for finance."""
    rows = (
        LedgerEntry.objects.filter(account__organization__isnull=True)
        .values_list("account__kind", "account__currency")
        .annotate(total=Sum("amount_nano"))
    )
    return {(kind, currency): total for kind, currency, total in rows}


@dataclass(frozen=True)
class CreditState:
    """What a copy of the credit is rebuilt from, all of one moment."""

    # Balance without lapsed credit, plus the credit limit; what running calls hold is not deducted.
    limit_nano: int
    # Hold of each running call.
    started: dict[UUID, int]
    # Of the calls asked about, or begun since: those that are over, so that their cost is in the balance.
    closed: list[UUID]


_CREDIT_STATE = """
WITH started AS (
    SELECT request_id, hold_nano FROM billing_usage_record
     WHERE organization_id = %(id)s AND status = 'started'
), closed AS (
    SELECT request_id FROM billing_usage_record
     WHERE request_id = ANY(%(request_ids)s::uuid[]) AND status <> 'started'
    UNION
    SELECT request_id FROM billing_usage_record
     WHERE organization_id = %(id)s AND started_at >= %(since)s AND status <> 'started'
)
SELECT (SELECT array_agg(request_id ORDER BY request_id) FROM started),
       (SELECT array_agg(hold_nano ORDER BY request_id) FROM started),
       (SELECT array_agg(request_id) FROM closed), balance.*
  FROM ({balances}) balance
"""


def credit_state(organization_id: int, *, request_ids: list[UUID], since: datetime) -> CreditState:
    """One statement, so one snapshot."""
    balances_of_one = _BALANCES.replace("ORDER BY balance.organization_id", "")
    parameters = {
        "ids": [organization_id],
        "now": None,
        "id": organization_id,
        "request_ids": request_ids,
        "since": since,
    }
    with connection.cursor() as cursor:
        cursor.execute(_CREDIT_STATE.format(balances=balances_of_one), parameters)
        row = cursor.fetchone()
    if row is None:
        raise UnknownAccount(organization_id)
    started_ids, holds, closed, *of_balance = row
    state = Balance(*of_balance)
    return CreditState(
        limit_nano=state.available_nano + state.held_nano,
        started=dict(zip(started_ids or [], holds or [], strict=True)),
        closed=closed or [],
    )
