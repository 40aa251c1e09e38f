"""The file of requests: one row each, corrections as rows of their own, so that the cost column adds up."""

from __future__ import annotations

from collections.abc import Iterator

from billing.exports.models import Export
from billing.exports.names import Names
from billing.exports.sources import Scope, requests
from billing.exports.table import Column, Row
from billing.money import to_decimal

COLUMNS = (
    Column("request_id"),
    Column("kind"),
    Column("started_at", "moment"),
    Column("finished_at", "moment"),
    Column("project_id", "integer"),
    Column("project"),
    Column("api_key_id", "integer"),
    Column("api_key"),
    Column("model"),
    Column("end_user"),
    Column("protocol"),
    Column("is_stream", "boolean"),
    Column("status"),
    Column("error_code"),
    Column("prompt_tokens", "integer"),
    Column("cached_tokens", "integer"),
    Column("cache_write_tokens", "integer"),
    Column("completion_tokens", "integer"),
    Column("reasoning_tokens", "integer"),
    Column("cost", "decimal"),
    Column("currency"),
)


def rows(export: Export, scope: Scope, names: Names) -> Iterator[Row]:
    currency = scope.account.currency
    for row in requests(export, scope):
        yield (
            str(row.request_id),
            row.kind,
            row.started_at,
            row.finished_at,
            row.project_id,
            names.projects.get(row.project_id or 0),
            row.api_key_id,
            names.api_keys.get(row.api_key_id or 0),
            row.model,
            row.end_user or None,
            row.protocol,
            row.is_stream,
            row.status,
            row.error_code or None,
            row.prompt_tokens,
            row.cached_tokens,
            row.cache_write_tokens,
            row.completion_tokens,
            row.reasoning_tokens,
            to_decimal(row.cost_nano),
            currency,
        )
