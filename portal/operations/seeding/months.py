"""The months of the records' table: filled alone, then indexed and joined to it, which is faster than row by row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import connection, transaction

from billing.usage.partitions import partition_sizes
from billing.usage.request_ids import floor_of

Month = tuple[datetime, datetime]


def table_of(month: datetime) -> str:
    """As `billing.usage.partitions` names them."""
    return f"billing_usage_record_{month:%Y_%m}"


@transaction.atomic
def make_months(months: Sequence[Month]) -> None:
    """Tables of these months, not of the records' table yet. What had their place there, empty, makes room."""
    made_ahead = partition_sizes()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE billing_usage_record DETACH PARTITION billing_usage_record_first")
        for since, _ in months:
            if table_of(since) in made_ahead:
                cursor.execute(f"ALTER TABLE billing_usage_record DETACH PARTITION {table_of(since)}")
                cursor.execute(f"DROP TABLE {table_of(since)}")
            cursor.execute(
                f"CREATE TABLE {table_of(since)} (LIKE billing_usage_record"
                " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE)"
            )


@transaction.atomic
def join_months(months: Sequence[Month]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE billing_usage_record ATTACH PARTITION billing_usage_record_first"
            " FOR VALUES FROM (MINVALUE) TO (%s)",
            [floor_of(months[0][0])],
        )
        for since, until in months:
            cursor.execute(
                f"ALTER TABLE billing_usage_record ATTACH PARTITION {table_of(since)} FOR VALUES FROM (%s) TO (%s)",
                [floor_of(since), floor_of(until)],
            )
