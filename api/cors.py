"""Calls from web pages: what a browser is told about an answer, by the list of origins of the key's organization.

A preflight carries no key, so it is answered for every origin that some organization allows, and tells no more.
Whether a page may read an answer is decided by the answer itself: only where the organization of its key allows the
page's origin is the origin named in it. Cookies and other credentials of the browser are never allowed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from api.errors import ApiError
from api.stores import STORE_ERRORS, in_thread
from portal.organizations.selectors import all_allowed_origins

# Changes are announced; this is for announcements that got lost.
TTL_S = 5.0
# So long a browser need not ask again. The answers themselves follow a change at once.
PREFLIGHT_AGE_S = 600
EXPOSED = ", ".join(
    (
        "x-request-id", "request-id", "openai-processing-ms", "openai-organization", "openai-version", "retry-after",
        "retry-after-ms", "x-should-retry", "idempotent-replayed",
        *(f"x-limit-{what}" for what in ("kind", "window", "scope", "model", "value", "remaining", "reset", "page")),
        *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
        *(
            f"anthropic-ratelimit-{of}-{what}"
            for of in ("requests", "tokens", "input-tokens", "output-tokens")
            for what in ("limit", "remaining", "reset")
        ),
    )
)  # fmt: skip
_ALLOWED_HEADERS = frozenset(
    {
        "authorization", "x-api-key", "content-type", "accept", "idempotency-key", "x-request-id", "anthropic-version",
        "anthropic-beta", "anthropic-dangerous-direct-browser-access", "openai-organization", "openai-project",
        "openai-beta", "user-agent", "x-client-request-id", "session-id",
    }
)  # fmt: skip
# Of the official clients and of agents; CORS has no way to write a prefix, so those asked for are named.
_ALLOWED_PREFIXES = ("x-stainless-", "x-codex-")


def answer_headers(headers: Mapping[bytes, bytes], allowed_origins: Sequence[str]) -> list[tuple[str, str]]:
    """For the answer to a call of a key whose organization allows these origins. Empty without an `Origin`."""
    origin = headers.get(b"origin", b"").decode("latin-1")
    if not origin:
        return []
    if origin not in allowed_origins:
        return [("vary", "Origin")]
    return [
        ("vary", "Origin"),
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", EXPOSED),
    ]


class Origins:
    """The origins that any organization allows, read when a preflight asks."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        # Counts announcements: what one overtook while it was read is used once and not kept.
        self._announced = 0

    def forget(self) -> None:
        """Some organization may have changed its list."""
        self._announced += 1
        self._read_at = float("-inf")

    async def preflight_headers(self, headers: Mapping[bytes, bytes], methods: Sequence[str]) -> list[tuple[str, str]]:
        """For the answer to OPTIONS; without `Access-Control-*` headers the browser makes no call.

        Raises ApiError when the lists cannot be read.
        """
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin or b"access-control-request-method" not in headers:
            return []
        found = [("vary", "Origin, Access-Control-Request-Headers")]
        if origin not in await self._all():
            return found
        asked = headers.get(b"access-control-request-headers", b"").decode("latin-1").lower()
        names = [name for name in map(str.strip, asked.split(",")) if _is_allowed(name)]
        return [
            *found,
            ("access-control-allow-origin", origin),
            ("access-control-allow-methods", ", ".join(methods)),
            *([("access-control-allow-headers", ", ".join(names))] if names else []),
            ("access-control-max-age", str(PREFLIGHT_AGE_S)),
        ]

    async def _all(self) -> frozenset[str]:
        now = time.monotonic()
        if now - self._read_at > TTL_S:
            announced = self._announced
            try:
                self._known = frozenset(await in_thread(all_allowed_origins))
            except STORE_ERRORS as error:
                raise ApiError("store_unavailable", "The service cannot read its settings right now.") from error
            if announced == self._announced:
                self._read_at = now
        return self._known


def _is_allowed(name: str) -> bool:
    return name in _ALLOWED_HEADERS or name.startswith(_ALLOWED_PREFIXES)
