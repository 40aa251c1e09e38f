"""What counts as a call that reached an engine, and how record and receipt agree: the one definition, as SQL."""

from __future__ import annotations

# A record counts when it reached an engine: it has a receipt, or it was served and its engine keeps a journal. Of
# several receipts for one request, the one that was served tells the class. Parameters: start, end.
_CALLS = """
calls AS (
    SELECT record.request_id, record.organization_id, record.started_at,
           COALESCE(receipt.match_class, 'gateway_only') AS match_class,
           COALESCE(receipt.is_settled, false) AS is_settled
      FROM {records}
      LEFT JOIN LATERAL (
        SELECT match_class, is_settled FROM billing_receipt
         WHERE billing_receipt.request_id = record.request_id ORDER BY status = 'failed', id LIMIT 1
      ) receipt ON true
     WHERE record.started_at >= %(start)s AND record.started_at < %(end)s
       AND (receipt.match_class IS NOT NULL OR (record.expects_receipt AND record.status IN ('completed', 'cancelled')
            AND record.prompt_tokens + record.completion_tokens > 0)) {of_records}
    UNION ALL
    SELECT receipt.request_id, NULL, receipt.started_at, receipt.match_class, receipt.is_settled
      FROM billing_receipt receipt
     WHERE receipt.started_at >= %(start)s AND receipt.started_at < %(end)s
       AND NOT EXISTS (SELECT 1 FROM billing_usage_record WHERE request_id = receipt.request_id) {of_receipts}
)
"""
CALLS = _CALLS.format(records="billing_usage_record record", of_records="", of_receipts="")
# Those of some requests alone. One more parameter: request_ids.
CALLS_OF = _CALLS.format(
    records="billing_usage_record record",
    of_records="AND record.request_id = ANY(%(request_ids)s::uuid[])",
    of_receipts="AND receipt.request_id = ANY(%(request_ids)s::uuid[])",
)
# Those with a record in some hours of organizations. Two more parameters: hours and organization_ids, place by place.
CALLS_IN = _CALLS.format(
    records="""unnest(%(hours)s::timestamptz[], %(organization_ids)s::bigint[]) AS looked_at (hour, organization_id)
      JOIN billing_usage_record record ON record.organization_id = looked_at.organization_id
       AND record.started_at >= hour AND record.started_at < hour + interval '1 hour'""",
    of_records="",
    of_receipts="AND false",
)
# Name -> which calls it counts. Of engine_only, `unsettled` are the receipts whose tenant is unknown.
CLASSES = {
    "total": "true",
    "equal": "match_class = 'equal'",
    "differ": "match_class = 'differ'",
    "unfinished": "match_class = 'unfinished'",
    "engine_only": "match_class = 'engine_only'",
    "gateway_only": "match_class = 'gateway_only'",
    "pending": "match_class = 'pending'",
    "unsettled": "match_class = 'engine_only' AND NOT is_settled",
}
COUNTS = ", ".join(f"COUNT(*) FILTER (WHERE {which}) AS {name}" for name, which in CLASSES.items())
