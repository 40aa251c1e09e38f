"""Recomputes from the facts what is kept for speed, and checks that the facts agree with each other."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection, transaction


@dataclass(frozen=True)
class Difference:
    """`expected` is what the ledger's entries say."""

    what: str
    id: str
    kept: int
    expected: int


# The key of a usage transaction is usage:<request id>.
_IS_RETIRED = (
    "substr(ledger.key, 7)::uuid < retired.until_id"
    " AND (retired.first_id IS NULL OR substr(ledger.key, 7)::uuid >= retired.first_id)"
)
# Each returns (id, kept, expected) for the rows that disagree.
_CHECKS = {
    "credit of organization": """
        SELECT balance.organization_id::text, balance.credit_nano, COALESCE(facts.total, 0)::bigint
          FROM billing_organization_balance balance LEFT JOIN (
            SELECT account.organization_id, SUM(amount_nano) AS total FROM billing_ledger_entry entry
              JOIN billing_ledger_account account ON account.id = entry.account_id
             WHERE account.kind = 'credit' GROUP BY 1) facts USING (organization_id)
         WHERE balance.credit_nano <> COALESCE(facts.total, 0)""",
    "receivable of organization": """
        SELECT balance.organization_id::text, balance.receivable_nano, COALESCE(facts.total, 0)::bigint
          FROM billing_organization_balance balance LEFT JOIN (
            SELECT account.organization_id, SUM(amount_nano) AS total FROM billing_ledger_entry entry
              JOIN billing_ledger_account account ON account.id = entry.account_id
             WHERE account.kind = 'receivable' GROUP BY 1) facts USING (organization_id)
         WHERE balance.receivable_nano <> COALESCE(facts.total, 0)""",
    "rest of grant": """
        SELECT balance.grant_id::text, balance.remaining_nano, COALESCE(facts.total, 0)::bigint
          FROM billing_grant_balance balance LEFT JOIN (
            SELECT grant_id, SUM(amount_nano) AS total FROM billing_ledger_entry
             WHERE grant_id IS NOT NULL GROUP BY 1) facts USING (grant_id)
         WHERE balance.remaining_nano <> COALESCE(facts.total, 0)""",
    "ledger transaction": """
        SELECT transaction_id::text, SUM(amount_nano)::bigint, 0::bigint FROM billing_ledger_entry
         GROUP BY 1 HAVING SUM(amount_nano) <> 0""",
    "usage record": f"""
        SELECT COALESCE(record.key, posted.key), COALESCE(record.cost_nano, 0), COALESCE(posted.total, 0)::bigint
          FROM (SELECT 'usage:' || request_id AS key, cost_nano FROM billing_usage_record WHERE cost_nano <> 0) record
          FULL JOIN (
            SELECT ledger.key, SUM(entry.amount_nano) AS total FROM billing_ledger_transaction ledger
              JOIN billing_ledger_entry entry ON entry.transaction_id = ledger.id
              JOIN billing_ledger_account account ON account.id = entry.account_id AND account.kind = 'revenue'
             WHERE ledger.kind = 'usage' AND NOT EXISTS (
                SELECT 1 FROM billing_retired_month retired WHERE {_IS_RETIRED})
             GROUP BY ledger.key) posted USING (key)
         WHERE record.cost_nano IS DISTINCT FROM posted.total""",  # noqa: S608 - constants only
    # Of records that retention removed, the sum is left to compare.
    "retired records": f"""
        SELECT retired.partition, retired.cost_nano, COALESCE(SUM(entry.amount_nano), 0)::bigint
          FROM (SELECT partition, first_id, until_id, SUM(cost_nano)::bigint AS cost_nano FROM billing_retired_month
                 GROUP BY 1, 2, 3) retired
          LEFT JOIN billing_ledger_transaction ledger ON ledger.kind = 'usage' AND {_IS_RETIRED}
          LEFT JOIN (billing_ledger_entry entry JOIN billing_ledger_account account
                       ON account.id = entry.account_id AND account.kind = 'revenue')
                 ON entry.transaction_id = ledger.id
         GROUP BY 1, 2 HAVING retired.cost_nano <> COALESCE(SUM(entry.amount_nano), 0)""",  # noqa: S608 - constants only
}
_REBUILD = """
UPDATE billing_organization_balance balance SET credit_nano = facts.credit, receivable_nano = facts.receivable
  FROM (SELECT inner_balance.organization_id,
               COALESCE(SUM(entry.amount_nano) FILTER (WHERE account.kind = 'credit'), 0) AS credit,
               COALESCE(SUM(entry.amount_nano) FILTER (WHERE account.kind = 'receivable'), 0) AS receivable
          FROM billing_organization_balance inner_balance
          LEFT JOIN billing_ledger_account account USING (organization_id)
          LEFT JOIN billing_ledger_entry entry ON entry.account_id = account.id
         GROUP BY inner_balance.organization_id) facts
 WHERE facts.organization_id = balance.organization_id;
UPDATE billing_grant_balance balance SET remaining_nano = facts.remaining
  FROM (SELECT inner_balance.grant_id, COALESCE(SUM(entry.amount_nano), 0) AS remaining
          FROM billing_grant_balance inner_balance LEFT JOIN billing_ledger_entry entry USING (grant_id)
         GROUP BY inner_balance.grant_id) facts
 WHERE facts.grant_id = balance.grant_id
"""


def compare() -> list[Difference]:
    """Everything that does not agree; empty when all is well. Reads one snapshot a check."""
    found = []
    with connection.cursor() as cursor:
        for what, query in _CHECKS.items():
            cursor.execute(query)
            found += [Difference(what, *row) for row in cursor.fetchall()]
    return found


@transaction.atomic
def rebuild() -> None:
    """Set the projections to what the entries say. Postings wait while it runs."""
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE billing_ledger_entry IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(_REBUILD)
