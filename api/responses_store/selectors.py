from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.db import connection

from api.responses_store.errors import ItemNotFound, PreviousResponseNotFound, ResponseNotFound
from api.responses_store.models import StoredItem, StoredResponse

_CHAIN = """
WITH RECURSIVE chain AS (
  SELECT id, previous_id, previous_response_id, 0 AS depth FROM api_storedresponse
   WHERE project_id = %s AND response_id = %s AND expires_at > %s
  UNION ALL
  SELECT r.id, r.previous_id, r.previous_response_id, chain.depth + 1
    FROM api_storedresponse r JOIN chain ON r.id = chain.previous_id
)
SELECT id, previous_id, previous_response_id FROM chain ORDER BY depth DESC
"""


@dataclass(frozen=True, slots=True)
class ItemPage:
    items: list[bytes]  # JSON
    first_id: str | None
    last_id: str | None
    has_more: bool


def find_response(project_id: int, response_id: str, now: datetime) -> bytes:
    """The Response object as JSON. Raises ResponseNotFound."""
    return _stored(project_id, response_id, now).body.encode()


def _stored(project_id: int, response_id: str, now: datetime) -> StoredResponse:
    if "\0" in response_id:  # which PostgreSQL does not take
        raise ResponseNotFound(response_id)
    try:
        return StoredResponse.objects.get(project_id=project_id, response_id=response_id, expires_at__gt=now)
    except StoredResponse.DoesNotExist:
        raise ResponseNotFound(response_id) from None


def chain_ids(project_id: int, response_id: str, now: datetime) -> list[int]:
    """Rows of a conversation up to `response_id`, oldest first. Raises PreviousResponseNotFound when one is gone."""
    if "\0" in response_id:
        raise PreviousResponseNotFound(response_id)
    with connection.cursor() as cursor:
        cursor.execute(_CHAIN, [project_id, response_id, now])
        rows = cursor.fetchall()
    if not rows:
        raise PreviousResponseNotFound(response_id)
    _, oldest_previous, oldest_name = rows[0]
    if oldest_previous is None and oldest_name:
        raise PreviousResponseNotFound(oldest_name)
    return [row[0] for row in rows]


def history(project_id: int, response_id: str, now: datetime) -> list[bytes]:
    """All items, as JSON, of a conversation up to and including `response_id`, oldest first. Two queries."""
    ids = chain_ids(project_id, response_id, now)
    order = {id: place for place, id in enumerate(ids)}
    rows = StoredItem.objects.filter(response_id__in=ids).values_list("response_id", "is_output", "position", "body")
    return [body.encode() for *_, body in sorted(rows, key=lambda row: (order[row[0]], row[1], row[2]))]


def find_items(project_id: int, item_ids: Collection[str], now: datetime) -> dict[str, bytes]:
    """Kept items, as JSON, by id, of any response of the project; the newest of those with one id. One query."""
    item_ids = [item_id for item_id in item_ids if "\0" not in item_id]
    rows = (
        StoredItem.objects.filter(item_id__in=item_ids, response__project_id=project_id, response__expires_at__gt=now)
        .order_by("id")
        .values_list("item_id", "body")
    )
    return {item_id: body.encode() for item_id, body in rows}


def input_items(
    project_id: int,
    response_id: str,
    now: datetime,
    *,
    after: str | None = None,
    limit: int = 20,
    order: Literal["asc", "desc"] = "desc",
) -> ItemPage:
    """A page of a response's own input items. Two or three queries."""
    response = _stored(project_id, response_id, now)
    items = StoredItem.objects.filter(response=response, is_output=False)
    if after is not None:
        if "\0" in after:
            raise ItemNotFound(after)
        place = items.filter(item_id=after).values_list("position", flat=True).first()
        if place is None:
            raise ItemNotFound(after)
        items = items.filter(position__gt=place) if order == "asc" else items.filter(position__lt=place)
    rows = list(
        items.order_by("position" if order == "asc" else "-position").values_list("item_id", "body")[: limit + 1]
    )
    page = rows[:limit]
    return ItemPage(
        items=[body.encode() for _, body in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=len(rows) > limit,
    )
