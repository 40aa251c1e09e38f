"""Tables without their indexes while they are filled: one sort at the end is cheaper than millions of look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

# Primary keys that foreign keys refer to have to stay; they grow in order, which is cheap.
_INDEXES = """
SELECT index.relname, con.conname, pg_get_constraintdef(con.oid), pg_get_indexdef(index.oid)
  FROM pg_index JOIN pg_class index ON index.oid = indexrelid
  LEFT JOIN pg_constraint con ON con.conindid = indexrelid AND con.conrelid = indrelid
 WHERE indrelid = %s::regclass
   AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE contype = 'f' AND confrelid = indrelid AND conindid = indexrelid)
"""


@contextmanager
def without_indexes(*tables: str) -> Iterator[None]:
    """They are made again, as they were, at the end; in a transaction that fails they were never away."""
    with connection.cursor() as cursor:
        made_again = []
        for table in tables:
            cursor.execute(_INDEXES, [table])
            for index, constraint, constraint_form, index_form in cursor.fetchall():
                if constraint:
                    cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{constraint}"')
                    made_again.append(f'ALTER TABLE {table} ADD CONSTRAINT "{constraint}" {constraint_form}')
                else:
                    cursor.execute(f'DROP INDEX "{index}"')
                    made_again.append(index_form)
        yield
        for statement in made_again:
            cursor.execute(statement)
