"""From a request's headers to its Caller. The secret itself is hashed at once and never kept, logged or echoed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from api.counters import KeyLimits
from api.errors import TAKES_NO_CALLS, ApiError
from api.http import Scope
from api.key_rules import check_key
from api.protocols.dialect import ErrorStyle
from api.stores import STORE_ERRORS, in_thread
from portal.api_keys import secrets
from portal.api_keys.selectors import ActiveKey, find_active
from portal.api_keys.services import mark_used

logger = logging.getLogger(__name__)

# A revoke is announced, so an entry may live long while announcements arrive; without them it must not.
TTL_S = 30.0
TTL_DEAF_S = 2.0
CACHE_LIMIT = 50_000
MARK_USED_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and so who pays."""

    organization_id: int
    project_id: int
    api_key_id: int
    organization_slug: str
    # Who made the key; None when that person has left.
    user_id: int | None
    # Of the key alone.
    limits: KeyLimits = field(default_factory=KeyLimits)
    # Public names; empty allows all.
    allowed_models: tuple[str, ...] = ()
    # Of web pages; empty allows none.
    allowed_origins: tuple[str, ...] = ()
    # Calls of the Responses API may be kept.
    keeps_responses: bool = False


# The caller is made once, so that what is made of the key's limits stays with it.
Found = tuple[ActiveKey, Caller]


def caller_of(key: ActiveKey) -> Caller:
    return Caller(
        key.organization_id,
        key.project_id,
        key.api_key_id,
        key.organization_slug,
        key.created_by_id,
        KeyLimits(key.limits),
        key.allowed_models,
        key.allowed_origins,
        key.keeps_responses,
    )


def secret_of(headers: Mapping[bytes, bytes], style: ErrorStyle) -> str | None:
    """The key that the headers hold. When both are sent, each dialect's own header wins."""
    own = headers.get(b"x-api-key")
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    given = bearer.strip() if scheme.lower() == b"bearer" else b""
    chosen = (own or given) if style == "anthropic" else (given or own)
    return chosen.decode("latin-1") if chosen else None


class Keys:
    """Digest to key and its caller, cached for a short time; unknown ones, too."""

    def __init__(self, is_hearing: Callable[[], bool]) -> None:
        """`is_hearing` says whether announcements of revoked keys arrive at this moment."""
        self._is_hearing = is_hearing
        self._cache: dict[str, tuple[float, Found | None]] = {}
        # Counts announcements: a look-up that one overtook is answered but not cached.
        self._announced = 0
        self._used: dict[int, datetime] = {}
        self._marking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._marking = asyncio.get_running_loop().create_task(self._mark_used())

    async def close(self) -> None:
        if self._marking is not None:
            self._marking.cancel()
            await asyncio.wait([self._marking])
        await self._write_used()

    def forget(self, digest: str | None = None) -> None:
        """A key was revoked or changed; without a digest, any may have been."""
        self._announced += 1
        if digest is None:
            self._cache.clear()
        else:
            self._cache.pop(digest, None)

    def forget_organization(self, organization_id: int) -> None:
        """It may have been suspended or resumed."""
        self._announced += 1
        for digest in [
            digest
            for digest, (_, found) in self._cache.items()
            if found and found[1].organization_id == organization_id
        ]:
            del self._cache[digest]

    async def authenticate(self, scope: Scope, headers: Mapping[bytes, bytes], style: ErrorStyle) -> Caller:
        """Raises ApiError; its message holds no part of the key."""
        secret = secret_of(headers, style)
        if secret is None:
            raise ApiError(
                "missing_api_key",
                "No API key was given. Send it as 'Authorization: Bearer <key>' or as 'x-api-key: <key>'.",
            )
        kind = secrets.kind_of(secret)
        if kind in (secrets.Kind.MANAGEMENT, secrets.Kind.OPERATOR):
            raise ApiError(
                "invalid_api_key",
                f"This is {'a management' if kind is secrets.Kind.MANAGEMENT else 'an operator'} key: it is for the "
                "management API and calls no model. Use an API key (sk-tf-…).",
            )
        found = await self._find(secrets.digest(secret)) if kind is secrets.Kind.API else None
        if found is None:
            raise ApiError(
                "invalid_api_key", "The API key is not valid: mistyped, revoked or of another service. See the portal."
            )
        key, caller = found
        now = datetime.now(UTC)
        if key.expires_at is not None and key.expires_at <= now:
            raise ApiError(
                "expired_api_key",
                f"The API key expired on {key.expires_at:%Y-%m-%d %H:%M} UTC. Make a new one in the portal.",
            )
        if key.organization_suspended:
            raise ApiError("organization_suspended", TAKES_NO_CALLS)
        if key.project_archived:
            raise ApiError("project_archived", "The API key belongs to an archived project; an admin can restore it.")
        check_key(key, scope)
        self._used[key.api_key_id] = now
        return caller

    async def _find(self, digest: str) -> Found | None:
        now = time.monotonic()
        cached = self._cache.get(digest)
        if cached is not None and now - cached[0] < (TTL_S if self._is_hearing() else TTL_DEAF_S):
            return cached[1]
        announced = self._announced
        try:
            key = await in_thread(find_active, digest)
        except STORE_ERRORS as error:
            logger.warning("key_lookup_failed error=%s", type(error).__name__)
            raise ApiError("store_unavailable", "The service cannot check API keys right now; try again.") from error
        found = None if key is None else (key, caller_of(key))
        if announced == self._announced:
            self._cache.pop(digest, None)
            while len(self._cache) >= CACHE_LIMIT:
                del self._cache[next(iter(self._cache))]
            self._cache[digest] = (now, found)
        return found

    async def _mark_used(self) -> None:
        while True:
            await asyncio.sleep(MARK_USED_INTERVAL_S)
            await self._write_used()

    async def _write_used(self) -> None:
        used, self._used = self._used, {}
        if used:
            try:
                await in_thread(mark_used, used)
            except STORE_ERRORS as error:
                # The next use says the same; nothing is owed to this one.
                logger.warning("last_used_not_written keys=%s error=%s", len(used), type(error).__name__)
