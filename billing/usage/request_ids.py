"""Request ids: version 7 UUIDs, so that they follow time, with the attempt in their last four bits.

The id of an operation's first attempt ends in 0, that of its second in 1, and so on. So an id names one attempt of one
operation, and the records' primary key is also the unique key of (operation, attempt): no second index is needed.
"""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

ATTEMPTS = 16


def new_request_id() -> UUID:
    """The id of a first attempt."""
    milliseconds = time.time_ns() // 1_000_000
    return UUID(
        int=(milliseconds << 80) | (7 << 76) | (secrets.randbits(12) << 64) | (2 << 62) | secrets.randbits(58) << 4
    )


def next_attempt(request_id: UUID) -> UUID:
    """The id of the attempt after that of `request_id`. Raises ValueError past the sixteenth."""
    if attempt_of(request_id) == ATTEMPTS:
        raise ValueError(f"{request_id} is attempt {ATTEMPTS} of its operation; there is no id for another.")
    return UUID(int=request_id.int + 1)


def attempt_of(request_id: UUID) -> int:
    """From 1."""
    return 1 + request_id.int % ATTEMPTS


def operation_of(request_id: UUID) -> UUID:
    """The id of its first attempt."""
    return UUID(int=request_id.int - request_id.int % ATTEMPTS)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def floor_of(moment: datetime) -> UUID:
    """No id made at `moment` or later is smaller; those made before it are."""
    return UUID(int=((moment - _EPOCH) // timedelta(milliseconds=1)) << 80)


def moment_of(request_id: UUID) -> datetime:
    """When the id was made, to the millisecond; of a floor, its moment."""
    return _EPOCH + timedelta(milliseconds=request_id.int >> 80)
