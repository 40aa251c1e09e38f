"""Counts refused calls: for Prometheus at once, and by minute for the operations view, flushed to PostgreSQL."""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import UTC, datetime

from api import metrics
from api.stores import STORE_ERRORS, in_thread
from portal.operations.services import Refusals, record_refusals

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 10.0
MINUTE_S = 60
# A minute is written again until it is this old, so that a write that failed is made up for.
KEPT_S = 600
# Past so many reasons and organizations in memory, the organization is no longer told apart.
LIMIT = 20_000
UNKNOWN = 0


class RefusalCounter:
    """Of one gateway process. `count` costs a dictionary entry; `flush` runs on the gateway's tick."""

    def __init__(self, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._counts: Counter[tuple[int, str, int]] = Counter()
        self._changed: set[tuple[int, str, int]] = set()
        self._flushed_at = time.monotonic()

    def count(self, code: str, organization_id: int = UNKNOWN) -> None:
        metrics.REFUSALS.labels(code).inc()
        minute = int(time.time()) // MINUTE_S * MINUTE_S
        if len(self._counts) >= LIMIT:
            organization_id = UNKNOWN
        key = (minute, code, organization_id)
        self._counts[key] += 1
        self._changed.add(key)

    @property
    def is_due(self) -> bool:
        return bool(self._changed) and time.monotonic() - self._flushed_at >= FLUSH_INTERVAL_S

    async def flush(self) -> None:
        """What does not get through now is written with the next flush."""
        self._flushed_at = time.monotonic()
        changed, self._changed = self._changed, set()
        rows = [
            Refusals(
                datetime.fromtimestamp(minute, UTC), code, organization_id, self._counts[minute, code, organization_id]
            )
            for minute, code, organization_id in sorted(changed)
        ]
        try:
            await in_thread(record_refusals, self._gateway_id, rows)
        except STORE_ERRORS as error:
            logger.warning("refusals_not_flushed rows=%s error=%s", len(rows), type(error).__name__)
            self._changed |= changed
        oldest = time.time() - KEPT_S
        for key in [key for key in self._counts if key[0] < oldest and key not in self._changed]:
            del self._counts[key]
