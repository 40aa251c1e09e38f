"""Tables without their indexes while they are filled: one sort at the end is cheaper than millions of look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from django.db import connection

from portal.operations.seeding.plan import Say
from portal.operations.seeding.sessions import run_together

# Primary keys that foreign keys refer to have to stay; they grow in order, which is cheap.
_INDEXES = """
SELECT index.relname, con.conname, pg_get_constraintdef(con.oid), pg_get_indexdef(index.oid)
  FROM pg_index JOIN pg_class index ON index.oid = indexrelid
  LEFT JOIN pg_constraint con ON con.conindid = indexrelid AND con.conrelid = indrelid
 WHERE indrelid = %s::regclass
   AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE contype = 'f' AND confrelid = indrelid AND conindid = indexrelid)
"""


@contextmanager
def without_indexes(*tables: str, say: Say) -> Iterator[None]:
    """They are made again, as they were, at the end: of two tables at a time."""
    dropped = {table: _drop(table) for table in tables}
    yield
    run_together([partial(_make_again, table, statements) for table, statements in dropped.items()], say)


def _drop(table: str) -> list[str]:
    """Returns what makes the indexes again."""
    made_again = []
    with connection.cursor() as cursor:
        cursor.execute(_INDEXES, [table])
        for index, constraint, constraint_form, index_form in cursor.fetchall():
            if constraint:
                cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{constraint}"')
                made_again.append(f'ALTER TABLE {table} ADD CONSTRAINT "{constraint}" {constraint_form}')
            else:
                cursor.execute(f'DROP INDEX "{index}"')
                made_again.append(index_form)
    return made_again


def _make_again(table: str, statements: list[str]) -> str:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    return f"indexes of {table}"
