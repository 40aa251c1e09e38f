"""Reserve credit and limits for a call, and settle them when it is over: one atomic function each, in Valkey.

`reserve` takes an upper bound of the call's cost out of the organization's credit and one unit of every limit that
applies, all or nothing; `settle` returns what was not used. docs/api/limits.md says what a lost or restarted Valkey
means; in one sentence: nothing is admitted without it, and what it forgot is read again from PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.conf import settings

from api import counters, credit, metrics
from api.auth import Caller
from api.counters import AppliedLimit, Plan, Planner
from api.errors import TAKES_NO_CALLS, ApiError
from api.protocols.dialect import ErrorStyle
from api.stores import STORE_ERRORS, in_thread
from api.valkey import Argument, Valkey, ValkeyError, ValkeyUnavailable
from billing.errors import UnknownAccount
from billing.money import format_nano, to_decimal
from inference_grpc.events import Usage
from portal.quotas import snapshot
from portal.quotas.snapshot import QuotaLimit
from portal.quotas.use import counted_input, used_with

logger = logging.getLogger(__name__)

# A gateway renews its leases well within this time; after a kill they are free this much later.
LEASE_MS = 60_000
RENEW_INTERVAL_S = 20.0
# Settlements that could not be sent wait here for Valkey; past the cap the refresh task repairs what was dropped.
UNSETTLED_LIMIT = 50_000
SETTLE_RETRY_S = 1.0
# How long a cached snapshot of limits is trusted while announcements arrive; without them, this is the only refresh.
LIMITS_TTL_S = 30.0
LIMITS_TTL_DEAF_S = 2.0
MAX_RETRY_AFTER_S = 120
LOAD_ATTEMPTS = 5

_SCOPE_WORDS = {"organization": "organization", "project": "project", "api_key": "API key", "member": "member"}
_KIND_WORDS = {
    "requests": "requests",
    "tokens": "tokens",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "spend": "spend",
    "concurrency": "requests at the same time",
}
# Which limits a dialect has headers for.
_HEADER_KINDS: dict[ErrorStyle, tuple[str, ...]] = {
    "openai": ("requests", "tokens"),
    "anthropic": ("requests", "tokens", "input_tokens", "output_tokens"),
}


@dataclass(frozen=True, slots=True)
class Demand:
    """What one call asks for. The tokens are an estimate, `hold_nano` is an upper bound."""

    model: str
    hold_nano: int
    input_tokens: int
    output_tokens: int
    currency: str

    def of(self, kind: str) -> int:
        return {
            "requests": 1,
            "concurrency": 1,
            "spend": self.hold_nano,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "tokens": self.input_tokens + self.output_tokens,
        }[kind]


@dataclass(frozen=True, slots=True)
class Used:
    """What a call really took, as limits count it."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano: int = 0


@dataclass(slots=True)
class Reservation:
    organization_id: int
    # The id under which the hold stands; `transfer` moves it. Leases keep the first one.
    request_id: UUID
    lease_id: UUID
    plan: Plan
    hold_nano: int
    input_tokens: int
    output_tokens: int
    # What reserve.lua answered: when it was made, and the plan's counters then.
    answer: bytes = b""
    is_settled: bool = False


# What settle.lua answers where it needs the plan.
NO_PLAN = 2


class Admission:
    def __init__(self, valkey: Valkey, is_hearing: Callable[[], bool]) -> None:
        """`is_hearing` says whether announcements of changed limits arrive at this moment."""
        self._valkey = valkey
        self._is_hearing = is_hearing
        self._planners: dict[int, tuple[float, bool, Planner]] = {}
        # Counts announcements, as api/auth.py does.
        self._announced = 0
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._live: dict[UUID, Reservation] = {}
        self._unsettled: list[tuple[Reservation, Used]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._renew_leases()), loop.create_task(self._retry_settlements())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._settle_waiting()
        if self._unsettled:
            logger.warning("settlements_left count=%s", len(self._unsettled))

    def forget_limits(self, organization_id: int | None = None) -> None:
        """Those of the organization, its projects and members; a key's own are forgotten with the key."""
        self._announced += 1
        if organization_id is None:
            self._planners.clear()
        else:
            self._planners.pop(organization_id, None)

    # Reserve ------------------------------------------------------------------------------------

    async def reserve(self, caller: Caller, request_id: UUID, demand: Demand) -> Reservation:
        """Raises ApiError: a limit, no credit, or no Valkey. Then nothing is taken, or it is given back."""
        plan = await self._plan(caller, demand.model)
        reservation = Reservation(
            caller.organization_id,
            request_id,
            request_id,
            plan,
            demand.hold_nano,
            demand.input_tokens,
            demand.output_tokens,
        )
        was_connected = self._valkey.is_connected
        try:
            answer = await self._reserve(caller.organization_id, request_id, plan, demand)
        except (ValkeyUnavailable, ValkeyError) as error:
            logger.warning("admission_unavailable error=%s", error)
            if was_connected:
                # The command may have been carried out, and only its answer lost.
                await self.release(reservation)
            raise ApiError("store_unavailable", "The service cannot check limits right now; try again.") from error
        if isinstance(answer, list):
            raise _refusal(answer, plan, caller, demand)
        reservation.answer = answer
        self._live[request_id] = reservation
        for quota_id in plan.exceeded(answer):
            await self._note_exceeded(reservation, plan.of(quota_id).quota)
        return reservation

    async def _note_exceeded(self, reservation: Reservation, quota: QuotaLimit) -> None:
        """A soft or shadow limit without room for this call: the log has both, a soft one also raises an alert."""
        metrics.LIMITS_EXCEEDED.labels(quota.mode, quota.kind).inc()
        logger.info(
            "limit_exceeded mode=%s quota_id=%s organization_id=%s request_id=%s",
            quota.mode,
            quota.id,
            reservation.organization_id,
            reservation.request_id,
        )
        if quota.mode == "soft":
            # The call is admitted already; a lost count delays the alert to the next call.
            with contextlib.suppress(ValkeyUnavailable, ValkeyError):
                await self._valkey.call("HINCRBY", snapshot.exceeded_key(reservation.organization_id), str(quota.id), 1)

    async def _reserve(
        self, organization_id: int, request_id: UUID, plan: Plan, demand: Demand
    ) -> bytes | list[Any]:  # a refusal is a list of texts and numbers
        arguments: list[Argument] = [
            str(request_id),
            demand.hold_nano,
            LEASE_MS,
            demand.input_tokens,
            demand.output_tokens,
            plan.packed,
        ]
        for _ in range(LOAD_ATTEMPTS):
            answer: bytes | list[Any] = await self._valkey.run("reserve", _keys(organization_id), arguments)
            if isinstance(answer, bytes) or answer[0] != b"unknown":
                return answer
            for quota_id in answer[1:]:
                await self._load(organization_id, plan.of(quota_id) if quota_id else None)
        raise ValkeyUnavailable("The counters could not be loaded.")

    async def _plan(self, caller: Caller, model: str) -> Plan:
        is_suspended, planner = await self._planner_of(caller.organization_id)
        if is_suspended:
            raise ApiError("organization_suspended", TAKES_NO_CALLS)
        return planner.plan(
            project_id=caller.project_id,
            key=caller.limits,
            user_id=caller.user_id,
            model=model,
            now=datetime.now(UTC),
        )

    async def _planner_of(self, organization_id: int) -> tuple[bool, Planner]:
        """Whether the organization is suspended, and what makes the plans of its calls."""
        now = time.monotonic()
        found = self._planners.get(organization_id)
        if found is not None and now - found[0] < (LIMITS_TTL_S if self._is_hearing() else LIMITS_TTL_DEAF_S):
            return found[1], found[2]
        announced = self._announced
        try:
            limits = await in_thread(snapshot.read, organization_id)
        except STORE_ERRORS as error:
            logger.warning("limits_unreadable organization_id=%s error=%s", organization_id, type(error).__name__)
            raise ApiError("store_unavailable", "The service cannot check limits right now; try again.") from error
        planner = Planner(limits)
        if announced == self._announced:
            self._planners[organization_id] = (now, limits.is_suspended, planner)
        return limits.is_suspended, planner

    # Loading what Valkey does not have ----------------------------------------------------------

    async def _load(self, organization_id: int, limit: AppliedLimit | None) -> None:
        """Read the credit, or the counter of a limit, from PostgreSQL. Calls that need the same one wait for the same
        load."""
        name = credit.key(organization_id) if limit is None else str(limit.counter)
        task = self._loading.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load_now(organization_id, limit))
            self._loading[name] = task
            task.add_done_callback(lambda _: self._loading.pop(name, None))
        await asyncio.shield(task)

    async def _load_now(self, organization_id: int, limit: AppliedLimit | None) -> None:
        try:
            if limit is None:
                await in_thread(credit.refresh, organization_id)
            else:
                await self._load_window(organization_id, limit)
        except UnknownAccount as error:
            raise ApiError("insufficient_quota", "This organization has no billing account.") from error
        except (*STORE_ERRORS, credit.RefreshContended) as error:
            logger.warning("counter_not_loaded organization_id=%s error=%s", organization_id, type(error).__name__)
            raise ApiError("store_unavailable", "The service cannot check credit right now; try again.") from error

    async def _load_window(self, organization_id: int, limit: AppliedLimit) -> None:
        """With what calls that run have reserved, where Valkey has lost it: their ends correct it."""
        assert limit.window_start is not None
        assert limit.window_end is not None
        for attempt in range(LOAD_ATTEMPTS):
            lost = credit.calls_without_plan(await self._valkey.call("HGETALL", credit.key(organization_id)))
            found = await in_thread(
                used_with,
                organization_id,
                limit.quota,
                limit.window_start,
                limit.window_end,
                settings.CACHED_TOKEN_LIMIT_PERCENT,
                lost,
            )
            parts: list[Argument] = [each for call_id, part in found.parts.items() for each in (str(call_id), part)]
            kind = counters.kind_place(limit.quota.kind)
            is_last = int(attempt == LOAD_ATTEMPTS - 1)
            arguments: list[Argument] = [limit.scope, limit.counter, kind, found.used, is_last, *parts]
            if await self._valkey.run("load_window", _keys(organization_id), arguments) >= 0:
                return

    # Settle -------------------------------------------------------------------------------------

    async def settle(self, reservation: Reservation, *, cost_nano: int, usage: Usage) -> None:
        """Return what was not used. A repeat does nothing; without Valkey it is kept and sent later."""
        counted = counted_input(usage.prompt_tokens, usage.cached_tokens, settings.CACHED_TOKEN_LIMIT_PERCENT)
        await self._settle_once(reservation, Used(1, counted, usage.completion_tokens, cost_nano))

    async def release(self, reservation: Reservation) -> None:
        """Undo a reservation of a call that is refused after all."""
        await self._settle_once(reservation, Used())

    async def _settle_once(self, reservation: Reservation, used: Used) -> None:
        if reservation.is_settled:
            return
        reservation.is_settled = True
        self._live.pop(reservation.lease_id, None)
        try:
            await self._settle(reservation, used)
        except (ValkeyUnavailable, ValkeyError):
            if len(self._unsettled) < UNSETTLED_LIMIT:
                self._unsettled.append((reservation, used))

    async def _settle(self, reservation: Reservation, used: Used) -> None:
        plan = reservation.plan
        # Valkey has the plan since the reservation, unless it has lost it.
        for packed in (b"?", plan.packed):
            arguments: list[Argument] = [
                str(reservation.request_id),
                used.cost_nano,
                str(reservation.lease_id),
                used.requests,
                used.input_tokens,
                used.output_tokens,
                packed,
                *plan.lease_keys,
            ]
            if await self._valkey.run("settle", _keys(reservation.organization_id), arguments) != NO_PLAN:
                return

    async def transfer(self, reservation: Reservation, request_id: UUID) -> None:
        """The call goes on as another attempt with its own record; the hold follows it."""
        arguments: list[Argument] = [str(reservation.request_id), str(request_id)]
        try:
            await self._valkey.run("transfer", [credit.key(reservation.organization_id)], arguments)
        except (ValkeyUnavailable, ValkeyError) as error:
            raise ApiError("store_unavailable", "The service cannot check credit right now; try again.") from error
        reservation.request_id = request_id

    async def _retry_settlements(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_RETRY_S)
            await self._settle_waiting()

    async def _settle_waiting(self) -> None:
        waiting, self._unsettled = self._unsettled, []
        for position, (reservation, used) in enumerate(waiting):
            try:
                await self._settle(reservation, used)
            except (ValkeyUnavailable, ValkeyError):
                self._unsettled = waiting[position:] + self._unsettled
                return

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            expiry = int(time.time() * 1000) + LEASE_MS
            try:
                for reservation in list(self._live.values()):
                    for key in reservation.plan.lease_keys:
                        await self._valkey.call("ZADD", key, "XX", expiry, str(reservation.lease_id))
            except (ValkeyUnavailable, ValkeyError) as error:
                logger.warning("leases_not_renewed error=%s", error)


# Limits ---------------------------------------------------------------------------------------------


def _keys(organization_id: int) -> list[str]:
    return [credit.key(organization_id), counters.key(organization_id)]


def _whose(quota: QuotaLimit) -> str:
    named = f" '{quota.scope_name}'" if quota.scope_name else ""
    of_model = f" for the model '{quota.model}'" if quota.model else ""
    return f"this {_SCOPE_WORDS[quota.scope]}{named}{of_model}"


def _refusal(answer: list[Any], plan: Plan, caller: Caller, demand: Demand) -> ApiError:
    """Of what reserve.lua answered."""
    if answer[0] == b"credit":
        return _credit_refusal(int(answer[1]), caller, demand)
    _, quota_id, remaining, reset_ms = answer
    return _limit_refusal(plan.of(quota_id), caller, remaining=remaining, reset_ms=reset_ms, demand=demand)


def _limit_refusal(limit: AppliedLimit, caller: Caller, *, remaining: int, reset_ms: int, demand: Demand) -> ApiError:
    quota = limit.quota
    if reset_ms < 0 and limit.window_end is not None:
        reset_ms = max(1000, int((limit.window_end - datetime.now(UTC)).total_seconds() * 1000))
    is_money = quota.kind == "spend"
    # A limit of 0 never has room.
    begins_anew = quota.limit > 0 and quota.window not in ("now", "lifetime")
    allowed, left, asked = (
        format_nano(value, demand.currency) if is_money else str(value)
        for value in (quota.limit, remaining, demand.of(quota.kind))
    )
    window = {"now": "", "lifetime": " in all"}.get(quota.window, f" per {quota.window}")
    what = f"The limit of {allowed} {_KIND_WORDS[quota.kind]}{window} of {_whose(quota)} is reached"
    page = _page(caller, "limits")
    where = f"An admin changes it at {page}."
    if quota.is_imposed:
        where = f"The operator of this service set it; what is left of it is shown at {page}."
    reset_s = -(-reset_ms // 1000)
    resets_at = datetime.now(UTC) + timedelta(seconds=reset_s)
    headers = [
        ("x-limit-kind", quota.kind),
        ("x-limit-window", quota.window),
        ("x-limit-scope", f"{quota.scope}:{quota.scope_id}"),
        ("x-limit-model", quote(quota.model, safe="")),
        ("x-limit-value", _plain(quota.limit, is_money=is_money)),
        ("x-limit-remaining", _plain(remaining, is_money=is_money)),
        ("x-limit-reset", f"{resets_at:%Y-%m-%dT%H:%M:%SZ}" if begins_anew else ""),
        ("x-limit-page", page),
    ]
    told = tuple((name, value) for name, value in headers if value)
    if not quota.limit:
        message = (
            f"A limit of {allowed} {_KIND_WORDS[quota.kind]}{window} lets no call of {_whose(quota)} through. {where}"
        )
    elif quota.kind == "concurrency":
        message = f"{what}: wait until one of them has ended. {where}"
    else:
        again = f" There is room again {_from_now(reset_s, resets_at)}." if begins_anew else ""
        message = f"{what}: {left} left, this call asks for {asked}.{again} {where}"
    if is_money:
        return ApiError("insufficient_quota", message, headers=told)
    if quota.kind == "concurrency" and quota.limit:
        return ApiError("rate_limit_concurrency", message, headers=told)
    code = "rate_limit_requests" if quota.kind in ("requests", "concurrency") else "rate_limit_tokens"
    retry_after_s = min(reset_s, MAX_RETRY_AFTER_S) if begins_anew else None
    return ApiError(code, message, headers=told, retry_after_s=retry_after_s)


def _from_now(seconds: int, moment: datetime) -> str:
    return f"in {seconds} s" if seconds <= 3600 else f"at {moment:%Y-%m-%d %H:%M} UTC"


def _page(caller: Caller, name: str) -> str:
    return f"{settings.PUBLIC_URL}/o/{caller.organization_slug}/{name}"


def _plain(value: int, *, is_money: bool) -> str:
    return f"{to_decimal(value).normalize():f}" if is_money else str(value)


def _credit_refusal(available_nano: int, caller: Caller, demand: Demand) -> ApiError:
    left = max(0, available_nano)
    balance, hold = format_nano(left, demand.currency), format_nano(demand.hold_nano, demand.currency)
    page = _page(caller, "billing/credit")
    headers = (
        ("x-limit-kind", "credit"),
        ("x-limit-scope", f"organization:{caller.organization_id}"),
        ("x-limit-remaining", _plain(left, is_money=True)),
        ("x-limit-page", page),
    )
    return ApiError(
        "insufficient_quota",
        f"The available credit of this organization is {balance} and this call would hold {hold} until it ends. "
        f"Ask for fewer output tokens, or add credit at {page}.",
        headers=headers,
    )


def rate_headers(reservation: Reservation, style: ErrorStyle) -> list[tuple[str, str]]:
    """The rate-limit headers of a dialect: the tightest per-minute limit of each kind."""
    tightest: dict[str, tuple[int, int, int]] = {}
    for limit, remaining, reset_ms in reservation.plan.rates(reservation.answer):
        if limit.quota.kind in _HEADER_KINDS[style]:
            row = (remaining, limit.quota.limit, reset_ms)
            tightest[limit.quota.kind] = min(tightest.get(limit.quota.kind, row), row)
    headers: list[tuple[str, str]] = []
    for kind, (remaining, allowed, reset_ms) in tightest.items():
        if style == "openai":
            values = (str(allowed), str(remaining), _duration(reset_ms))
            names = (f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset"))
        else:
            reset_at = datetime.now(UTC) + timedelta(milliseconds=reset_ms)
            values = (str(allowed), str(remaining), f"{reset_at:%Y-%m-%dT%H:%M:%SZ}")
            names = (f"anthropic-ratelimit-{kind.replace('_', '-')}-{what}" for what in ("limit", "remaining", "reset"))
        headers += zip(names, values, strict=True)
    return headers


def _duration(milliseconds: int) -> str:
    """As OpenAI writes it: `120ms`, `1s`, `6m0s`."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(-(-milliseconds // 1000), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
