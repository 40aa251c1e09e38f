from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction

from api.idempotency.errors import AnswerNotKept, CallInProgress, KeyReused
from api.idempotency.models import IdempotentCall

KEEP_FOR = timedelta(hours=24)
# A call that holds its key longer has lost its gateway; the key is free again.
RUNNING_LIMIT = timedelta(minutes=30)
ANSWER_LIMIT_BYTES = 1_048_576
PURGE_BATCH = 500


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    status: int
    content_type: str
    body: bytes


def digest(path: str, body: bytes) -> str:
    return hashlib.sha256(path.encode() + b"\0" + body).hexdigest()


def claim(*, project_id: int, key: str, digest: str, request_id: UUID, now: datetime) -> KeptAnswer | None:
    """None: the key is this call's now, and it must `finish` or `release`. An answer: send it, run nothing.

    Raises IdempotencyConflict. Of two claims at once one wins; the other is told that the first is running.
    """
    with transaction.atomic():
        call, is_new = IdempotentCall.objects.select_for_update().get_or_create(
            project_id=project_id,
            key=key,
            defaults={"digest": digest, "request_id": request_id, "created_at": now},
        )
        if is_new:
            return None
        age = now - call.created_at
        if age > KEEP_FOR or (call.status is None and age > RUNNING_LIMIT):
            call.digest, call.request_id, call.created_at = digest, request_id, now
            call.status, call.content_type, call.answer = None, "", None
            call.save()
            return None
    if call.digest != digest:
        raise KeyReused
    if call.status is None:
        raise CallInProgress
    if call.answer is None:
        raise AnswerNotKept
    return KeptAnswer(call.status, call.content_type, bytes(call.answer))


def finish(*, project_id: int, key: str, request_id: UUID, status: int, content_type: str, body: bytes) -> None:
    """Keep the answer for repeats. Does nothing when the key is not this call's any more."""
    IdempotentCall.objects.filter(project_id=project_id, key=key, request_id=request_id, status=None).update(
        status=status, content_type=content_type, answer=body if len(body) <= ANSWER_LIMIT_BYTES else None
    )


def release(*, project_id: int, key: str, request_id: UUID) -> None:
    """Give the key back after a call that came to nothing, so that a repeat runs."""
    IdempotentCall.objects.filter(project_id=project_id, key=key, request_id=request_id, status=None).delete()


def purge_expired(*, now: datetime) -> int:
    """Delete old keys in small transactions; returns how many."""
    purged = 0
    while True:
        old = IdempotentCall.objects.filter(created_at__lt=now - KEEP_FOR).values_list("id", flat=True)
        ids = list(old[:PURGE_BATCH])
        if not ids:
            return purged
        IdempotentCall.objects.filter(id__in=ids).delete()
        purged += len(ids)
