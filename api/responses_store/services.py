from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from django.db import transaction
from django.db.models import QuerySet

from api.responses_store.errors import ResponseNotFound
from api.responses_store.models import StoredItem, StoredResponse
from api.responses_store.selectors import chain_ids

PURGE_BATCH = 500


def save_response(
    *,
    project_id: int,
    response: dict[str, Any],
    previous_response_id: str | None,
    input_items: Sequence[dict[str, Any]],
    now: datetime,
    retention: timedelta,
) -> StoredResponse:
    """Keep a finished response and its items; what it continues is kept as long. A repeat changes nothing.

    `previous_response_id` is None for one that continues nothing kept: then `input_items` is the whole conversation.
    Raises PreviousResponseNotFound when what it continues was deleted meanwhile.
    """
    previous_name = previous_response_id or ""
    expires_at = now + retention
    with transaction.atomic():
        before = chain_ids(project_id, previous_name, now) if previous_name else []
        stored, is_new = StoredResponse.objects.get_or_create(
            response_id=response["id"],
            defaults={
                "project_id": project_id,
                "previous_response_id": previous_name,
                "previous_id": before[-1] if before else None,
                "body": orjson.dumps(response).decode(),
                "created_at": now,
                "expires_at": expires_at,
            },
        )
        if not is_new:
            return stored
        StoredItem.objects.bulk_create(
            StoredItem(
                response=stored,
                is_output=is_output,
                position=position,
                item_id=item["id"],
                body=orjson.dumps(item).decode(),
            )
            for is_output, items in ((False, input_items), (True, response["output"]))
            for position, item in enumerate(items)
        )
        StoredResponse.objects.filter(id__in=before, expires_at__lt=expires_at).update(expires_at=expires_at)
    return stored


def delete_response(*, project_id: int, response_id: str) -> None:
    """Forget a response and its items. What continued it can no longer be continued."""
    if "\0" in response_id:
        raise ResponseNotFound(response_id)
    deleted, _ = StoredResponse.objects.filter(project_id=project_id, response_id=response_id).delete()
    if not deleted:
        raise ResponseNotFound(response_id)


def purge_expired(*, now: datetime) -> int:
    """Delete what has expired, and what organizations have that keep responses no longer.

    In small transactions so that nothing waits long; returns how many responses.
    """
    unwanted = StoredResponse.objects.filter(project__organization__keeps_responses=False)
    return _purge(StoredResponse.objects.filter(expires_at__lte=now).order_by("expires_at")) + _purge(unwanted)


def _purge(chosen: QuerySet[StoredResponse]) -> int:
    purged = 0
    while ids := list(chosen.values_list("id", flat=True)[:PURGE_BATCH]):
        StoredResponse.objects.filter(id__in=ids).delete()
        purged += len(ids)
    return purged
