"""Rows by COPY, with ids reserved from their sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import apps
from django.db import connection, models


def copy_rows(label: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Rows of these columns; the others get their field's default. Returns how many."""
    model = apps.get_model(label)
    fields = {field.column: field for field in model._meta.concrete_fields}
    constants = {
        column: field.get_db_prep_save(field.get_default(), connection)
        for column, field in fields.items()
        if column not in names and not _is_filled_by_database(field)
    }
    columns = ", ".join(f'"{name}"' for name in [*names, *constants])
    tail = tuple(constants.values())
    count = 0
    with connection.cursor() as cursor:
        statement = f"COPY {model._meta.db_table} ({columns}) FROM STDIN"  # names of our own tables
        with cursor.cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row((*row, *tail))
                count += 1
    return count


def _is_filled_by_database(field: models.Field[Any, Any]) -> bool:
    if field.generated or field.has_db_default() or isinstance(field, models.AutoField):
        return True
    return field.null and not field.has_default()


def next_id(label: str, count: int) -> int:
    """Reserve ids of a table's sequence; the first of them."""
    table = apps.get_model(label)._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [table])
        sequence = cursor.fetchone()[0]
        cursor.execute("SELECT nextval(%s)", [sequence])
        first: int = cursor.fetchone()[0]
        cursor.execute("SELECT setval(%s, %s)", [sequence, first + count])
        return first


def ids_of(label: str, count: int) -> range:
    first = next_id(label, count)
    return range(first, first + count)
