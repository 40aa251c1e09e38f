"""What a client logs about an engine that is away."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

# First and longest time between two lines about an engine that stays away.
SAID_AGAIN_S = (60.0, 3600.0)


class Absence:
    """Logs that an engine went and came back, and at a growing distance that it is still away."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._since: float | None = None
        self._say_at = 0.0
        self._distance_s = SAID_AGAIN_S[0]

    def note(self, reason: str) -> None:
        """An attempt failed, or the session broke."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._distance_s = now, SAID_AGAIN_S[0]
            logger.warning("engine_session_lost address=%s reason=%r", self._address, reason)
        elif now < self._say_at:
            return
        else:
            self._distance_s = min(2 * self._distance_s, SAID_AGAIN_S[1])
            away_s = now - self._since
            logger.warning("engine_still_away address=%s away_s=%.0f reason=%r", self._address, away_s, reason)
        self._say_at = now + self._distance_s

    def end(self) -> None:
        """A session stands. After an absence that is said; the first session of all is no return."""
        if self._since is not None:
            logger.info("engine_session_back address=%s away_s=%.1f", self._address, time.monotonic() - self._since)
        self._since = None
