"""Writes balanced groups of entries, many in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db import connection

from billing.ledger.models import ORGANIZATION_KINDS, AccountKind, TransactionKind

HOUSE_KINDS = tuple(kind for kind in AccountKind if kind not in ORGANIZATION_KINDS)


@dataclass(frozen=True, slots=True)
class Entry:
    account_id: int
    amount_nano: int
    grant_id: int | None = None


@dataclass(frozen=True, slots=True)
class Posting:
    """One ledger transaction. `key` names the act: a second posting under it fails on the unique key."""

    kind: TransactionKind
    key: str
    entries: tuple[Entry, ...]
    reason: str = ""
    actor_id: int | None = None

    def __post_init__(self) -> None:
        rest = sum(entry.amount_nano for entry in self.entries)
        if rest:
            raise ValueError(f"Posting {self.key!r} does not sum to zero: {rest} nano are left.")


_POST = """
WITH posted AS (
    INSERT INTO billing_ledger_transaction (kind, key, reason, actor_id)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
    RETURNING id, key
)
INSERT INTO billing_ledger_entry (transaction_id, account_id, grant_id, amount_nano)
SELECT posted.id, entry.account_id, entry.grant_id, entry.amount_nano
  FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[]) AS entry (key, account_id, grant_id, amount_nano)
  JOIN posted ON posted.key = entry.key
"""


def post(postings: Sequence[Posting]) -> None:
    """Write the postings in the caller's transaction. Projections follow by trigger, in the same statement."""
    if not postings:
        return
    entries = [(posting.key, entry) for posting in postings for entry in posting.entries]
    with connection.cursor() as cursor:
        cursor.execute(
            _POST,
            [
                [str(posting.kind) for posting in postings],
                [posting.key for posting in postings],
                [posting.reason for posting in postings],
                [posting.actor_id for posting in postings],
                [key for key, _ in entries],
                [entry.account_id for _, entry in entries],
                [entry.grant_id for _, entry in entries],
                [entry.amount_nano for _, entry in entries],
            ],
        )


_OPEN_ACCOUNTS = """
INSERT INTO billing_ledger_account (kind, organization_id, currency)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[])
ON CONFLICT DO NOTHING
"""


def open_ledger_accounts(organization_id: int, currency: str) -> None:
    """The organization's two accounts and the house's of that currency; existing ones stay."""
    rows: list[tuple[str, int | None, str]] = [(kind.value, organization_id, currency) for kind in ORGANIZATION_KINDS]
    rows += [(kind.value, None, currency) for kind in HOUSE_KINDS]
    with connection.cursor() as cursor:
        cursor.execute(_OPEN_ACCOUNTS, [list(column) for column in zip(*rows, strict=True)])


def revenue_entries(entries: Iterable[Entry], revenue_account_id: int) -> tuple[Entry, ...]:
    """The payer's entries closed by what the house earned."""
    paid = tuple(entries)
    return (*paid, Entry(revenue_account_id, -sum(entry.amount_nano for entry in paid)))
