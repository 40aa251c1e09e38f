"""What must be true of a product's books at any time, asked of its database."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.stack import Stack

# A record as corrected by its adjustments.
EFFECTIVE = """
SELECT record.request_id::text, record.status,
       record.prompt_tokens + COALESCE(sum(adjustment.prompt_tokens), 0),
       record.completion_tokens + COALESCE(sum(adjustment.completion_tokens), 0),
       record.cost_nano + COALESCE(sum(adjustment.cost_nano), 0)
  FROM billing_usage_record record
  LEFT JOIN billing_usage_adjustment adjustment ON adjustment.record_id = record.request_id
 GROUP BY record.request_id
"""


def effective_records(stack: Stack) -> dict[str, tuple[str, int, int, int]]:
    """Request id to (status, prompt tokens, completion tokens, cost)."""
    return {row[0]: (row[1], int(row[2]), int(row[3]), int(row[4])) for row in stack.rows(EFFECTIVE)}


def ledger_sum(stack: Stack, kind: str) -> int:
    query = """
        SELECT COALESCE(sum(entry.amount_nano), 0) FROM billing_ledger_entry entry
          JOIN billing_ledger_account account ON account.id = entry.account_id WHERE account.kind = %s
    """
    return int(stack.value(query, kind))


def check_books(stack: Stack) -> None:
    """Σ ledger = Σ records to the nano-unit, nothing held, every receipt settled and equal to its record."""
    records = effective_records(stack)
    total_cost = sum(cost for _, _, _, cost in records.values())
    assert ledger_sum(stack, "revenue") == total_cost
    assert stack.value("SELECT COALESCE(sum(amount_nano), 0) FROM billing_ledger_entry") == 0
    grants = stack.value("SELECT COALESCE(sum(amount_nano), 0) FROM billing_credit_grant")
    assert ledger_sum(stack, "credit") == grants - total_cost
    assert held(stack) == 0
    assert unsettled_receipts(stack) == []
    for request_id, prompt_tokens, completion_tokens in stack.rows(
        "SELECT request_id::text, prompt_tokens, completion_tokens FROM billing_receipt WHERE status <> 'failed'"
    ):
        assert records[request_id][1:3] == (prompt_tokens, completion_tokens)


def held(stack: Stack) -> int:
    return int(stack.value("SELECT COALESCE(sum(hold_nano), 0) FROM billing_usage_record WHERE status = 'started'"))


def unsettled_receipts(stack: Stack) -> list[tuple[Any, ...]]:
    return stack.rows("SELECT request_id::text, match_class, note FROM billing_receipt WHERE NOT is_settled")
