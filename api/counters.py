"""Which counters a call moves, in the form that the functions take: a plan (lua/counters.lua says what is in it).

A plan depends on the caller, the model and the day, not on the call, so its parts are made once and kept: a call with
twelve limits costs the gateway what a call with one does.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor
from typing import Literal

from portal.quotas.snapshot import Limits, QuotaLimit
from portal.quotas.use import window_bounds

# Parts of plans kept for one organization: one for each of its keys, projects and members that call, and each model.
PARTS_LIMIT = 20_000
# Whole plans, of keys that call again and again.
PLANS_LIMIT = 1_000
KINDS = ("requests", "input_tokens", "output_tokens", "tokens", "spend")
DAYS = 1 << 20
MINUTE_US = 60_000_000
# Plans with more counters than this go the long way (lua/shapes.lua); there are as many local variables in its code.
MOST_IN_SHAPE = 40
SHAPE_MARK = 255
# What an answer of reserve.lua begins with.
NOW_BYTES = 8
_FORMS = {("bucket", True): 1, ("bucket", False): 2, ("window", True): 3, ("window", False): 4}

Form = Literal["bucket", "window", "lease"]


@dataclass(frozen=True, slots=True)
class AppliedLimit:
    """One quota and where it is counted: among the slots of `scope`, or for a lease in the set `live:{scope}`."""

    quota: QuotaLimit
    form: Form
    scope: str
    # Of a calendar window: [start, end).
    window_start: datetime | None = None
    window_end: datetime | None = None

    @property
    def is_hard(self) -> bool:
        return self.quota.mode == "hard"

    @property
    def counter(self) -> int:
        """Tells counters apart: by quota and first day of the window."""
        return self.quota.id * DAYS + (0 if self.window_start is None else self.window_start.toordinal())


# A limit and where its value stands in an answer of reserve.lua.
Place = tuple[AppliedLimit, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """`packed` is the functions' form, empty without limits; `hard_buckets` are the hard limits per minute. In an
    answer of reserve.lua the quotas without room begin after `answer_bytes`."""

    limits: tuple[AppliedLimit, ...]
    hard_buckets: tuple[Place, ...]
    lease_keys: tuple[str, ...]
    packed: bytes
    answer_bytes: int

    def of(self, quota_id: int) -> AppliedLimit:
        return next(limit for limit in self.limits if limit.quota.id == quota_id)

    def exceeded(self, answer: bytes) -> list[int]:
        """Ids of the quotas that the call had no room in and that refuse nothing."""
        return [int(quota_id) for (quota_id,) in struct.iter_unpack("<d", answer[self.answer_bytes :])]

    def rates(self, answer: bytes) -> list[tuple[AppliedLimit, int, int]]:
        """Each hard limit per minute with what is left of it and when it is full again in ms."""
        found = []
        (now_us,) = struct.unpack_from("<d", answer)
        for limit, place in self.hard_buckets:
            (full_us,) = struct.unpack_from("<d", answer, place)
            left = (MINUTE_US - (full_us - now_us)) * limit.quota.limit / MINUTE_US
            found.append((limit, max(0, floor(left + 0.000001)), ceil((full_us - now_us) / 1000)))
        return found


@dataclass(slots=True)
class _Part:
    """The limits of the organization, a project, a key or a member, or of several of these. Of an answer it has
    `answer_bytes`; places count from their beginning."""

    limits: tuple[AppliedLimit, ...] = ()
    hard_buckets: tuple[Place, ...] = ()
    lease_keys: tuple[str, ...] = ()
    answer_bytes: int = 0
    # Some limit of requests, tokens or spend is 0: there is never room.
    has_none: bool = False
    # As the plan has them; those of all models and those of one are scopes of their own: how many counters each has.
    counts: bytes = b""
    scopes: bytes = b""
    forms: bytes = b""
    kinds: bytes = b""
    sizes: bytes = b""
    leases: bytes = b""

    def __add__(self, other: _Part) -> _Part:
        moved = tuple([(limit, self.answer_bytes + place) for limit, place in other.hard_buckets])
        return _Part(
            self.limits + other.limits,
            self.hard_buckets + moved,
            self.lease_keys + other.lease_keys,
            self.answer_bytes + other.answer_bytes,
            self.has_none or other.has_none,
            self.counts + other.counts,
            self.scopes + other.scopes,
            self.forms + other.forms,
            self.kinds + other.kinds,
            self.sizes + other.sizes,
            self.leases + other.leases,
        )


class Planner:
    """Makes the plans of one organization's limits, until these change."""

    def __init__(self, limits: Limits) -> None:
        self._organization_id = limits.organization_id
        self._time_zone = limits.time_zone
        self._quotas: dict[tuple[str, int], list[QuotaLimit]] = defaultdict(list)
        for quota in limits.quotas:
            self._quotas[quota.scope, quota.scope_id].append(quota)
        self._parts: dict[tuple[str, int, str], _Part] = {}
        self._plans: dict[tuple[int, int, int | None, str], Plan] = {}
        self._windows: dict[str, tuple[datetime, datetime]] = {}
        # Calendar windows of every length end at some midnight.
        self._midnight = datetime.min.replace(tzinfo=UTC)

    def plan(self, *, project_id: int, api_key_id: int, user_id: int | None, model: str, now: datetime) -> Plan:
        """The counters of a call of `model` with this key, which `user_id` made."""
        if now >= self._midnight:
            self._parts.clear()
            self._plans.clear()
            self._windows.clear()
            _, self._midnight = window_bounds("day", self._time_zone, now)
        whose = (project_id, api_key_id, user_id, model)
        plan = self._plans.get(whose)
        if plan is None:
            if len(self._plans) >= PLANS_LIMIT:
                self._plans.clear()
            plan = self._plans[whose] = self._make_plan(project_id, api_key_id, user_id, model, now)
        return plan

    def _make_plan(self, project_id: int, api_key_id: int, user_id: int | None, model: str, now: datetime) -> Plan:
        whole = self._shared(project_id, model, now)
        if ("api_key", api_key_id) in self._quotas:
            whole += self._part("api_key", api_key_id, model, now)
        if user_id is not None and ("member", user_id) in self._quotas:
            whole += self._part("member", user_id, model, now)
        if not whole.limits:
            return Plan((), (), (), b"", NOW_BYTES)
        return Plan(
            limits=whole.limits,
            hard_buckets=tuple([(limit, NOW_BYTES + place) for limit, place in whole.hard_buckets]),
            lease_keys=whole.lease_keys,
            packed=b"".join(
                (
                    bytes([len(whole.counts)]),
                    whole.scopes,
                    whole.forms,
                    whole.kinds,
                    whole.sizes,
                    bytes([len(whole.lease_keys)]),
                    whole.leases,
                    _pack_shape(whole),
                )
            ),
            answer_bytes=NOW_BYTES + whole.answer_bytes,
        )

    def _shared(self, project_id: int, model: str, now: datetime) -> _Part:
        """Of the organization and the project: the same for all their keys."""
        whose = ("shared", project_id, model)
        part = self._parts.get(whose)
        if part is None:
            part = self._part("organization", self._organization_id, model, now)
            part += self._part("project", project_id, model, now)
            self._parts[whose] = part
        return part

    def _part(self, scope: str, scope_id: int, model: str, now: datetime) -> _Part:
        part = self._parts.get((scope, scope_id, model))
        if part is None:
            if len(self._parts) >= PARTS_LIMIT:
                self._parts.clear()
            quotas = [quota for quota in self._quotas.get((scope, scope_id), ()) if quota.model in ("", model)]
            part = self._parts[scope, scope_id, model] = _make_part([self._apply(quota, now) for quota in quotas])
        return part

    def _apply(self, quota: QuotaLimit, now: datetime) -> AppliedLimit:
        # All limits of a scope apply to the same calls.
        scope = f"{quota.scope}:{quota.scope_id}{quota.model and ':'}{quota.model}"
        if quota.kind == "concurrency":
            return AppliedLimit(quota, "lease", scope)
        if quota.window == "minute":
            return AppliedLimit(quota, "bucket", scope)
        if quota.window not in self._windows:
            self._windows[quota.window] = window_bounds(quota.window, self._time_zone, now)
        return AppliedLimit(quota, "window", scope, *self._windows[quota.window])


def key(organization_id: int) -> str:
    """Of the hash that holds an organization's counters."""
    return f"counts:{organization_id}"


def read(packed: bytes) -> dict[int, float]:
    """The counters in a field of that hash, with their values (lua/counters.lua)."""
    if not packed:
        return {}
    count = packed[0]
    numbers = [number for (number,) in struct.iter_unpack("<d", packed[1:])]
    rest = numbers[2 * count :]
    found = {int(counter): value for counter, value in zip(rest[::2], rest[1::2], strict=True)}
    return found | {int(counter): value for counter, value in zip(numbers, numbers[count : 2 * count], strict=False)}


def write(values: dict[int, float]) -> bytes:
    """The same the other way."""
    count = len(values)
    return struct.pack(f"<B{count}d{count}d", count, *values, *values.values())


def _make_part(limits: list[AppliedLimit]) -> _Part:
    by_scope: dict[str, list[AppliedLimit]] = defaultdict(list)
    leases = [limit for limit in limits if limit.form == "lease"]
    for limit in limits:
        if limit.form != "lease":
            by_scope[limit.scope].append(limit)
    counted = [limit for group in by_scope.values() for limit in group]
    answer_bytes, hard_buckets = 0, []
    for group in by_scope.values():
        values = answer_bytes + 1 + 8 * len(group)
        for number, limit in enumerate(group):
            if limit.form == "bucket" and limit.is_hard:
                hard_buckets.append((limit, values + 8 * number))
        answer_bytes = values + 8 * len(group)
    return _Part(
        limits=tuple(limits),
        hard_buckets=tuple(hard_buckets),
        lease_keys=tuple(_lease_key(limit) for limit in leases),
        answer_bytes=answer_bytes,
        has_none=any(not limit.quota.limit for limit in counted),
        counts=bytes(map(len, by_scope.values())),
        scopes=b"".join(_pack_text(scope) + _pack_header(group) for scope, group in by_scope.items()),
        forms=bytes(_FORMS[limit.form, limit.is_hard] for limit in counted),
        kinds=bytes(kind_place(limit.quota.kind) for limit in counted),
        sizes=b"".join(struct.pack("<d", _size(limit)) for limit in counted),
        leases=b"".join(
            _pack_text(_lease_key(limit)) + struct.pack("<Bdd", limit.is_hard, limit.quota.limit, limit.quota.id)
            for limit in leases
        ),
    )


def _lease_key(limit: AppliedLimit) -> str:
    return f"live:{limit.scope}"


def kind_place(kind: str) -> int:
    """Its place in the amounts of a call, as the functions count."""
    return KINDS.index(kind) + 1


def _size(limit: AppliedLimit) -> float:
    if limit.form == "window":
        return limit.quota.limit
    return MINUTE_US / limit.quota.limit if limit.quota.limit else 0


def _pack_header(limits: list[AppliedLimit]) -> bytes:
    count = len(limits)
    header = struct.pack(f"<B{count}d", count, *(limit.counter for limit in limits))
    return struct.pack("<H", len(header)) + header


def _pack_shape(part: _Part) -> bytes:
    """What the short way of shapes.lua knows the plan by; none with too many counters, or one that never has room."""
    if not 0 < len(part.forms) <= MOST_IN_SHAPE or part.has_none:
        return b""
    shape = part.counts + part.forms + part.kinds
    return shape + bytes([len(shape), SHAPE_MARK])


def _pack_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<H", len(encoded)) + encoded
