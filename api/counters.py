"""Which counters a call moves, in the form that the scripts take: a plan (scripts/counters.lua says what is in it).

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


@dataclass(frozen=True, slots=True)
class Plan:
    """`packed` is the scripts' form, empty without limits; `counted` are the limits without leases, in its order."""

    limits: tuple[AppliedLimit, ...]
    counted: tuple[AppliedLimit, ...]
    lease_keys: tuple[str, ...]
    packed: bytes

    def of(self, quota_id: int) -> AppliedLimit:
        return next(limit for limit in self.limits if limit.quota.id == quota_id)

    def hard_buckets(self, now_us: int, values: bytes) -> list[tuple[AppliedLimit, int, int]]:
        """Each hard limit per minute with what is left of it and when it is full again in ms, from what reserve.lua
        answered."""
        found = []
        for limit, (value,) in zip(self.counted, struct.iter_unpack("<d", values), strict=True):
            if limit.form == "bucket" and limit.is_hard:
                left = (MINUTE_US - (value - now_us)) * limit.quota.limit / MINUTE_US
                found.append((limit, max(0, floor(left + 0.000001)), ceil((value - now_us) / 1000)))
        return found


@dataclass(frozen=True, slots=True)
class _Part:
    """The limits of the organization, a project, a key or a member."""

    limits: tuple[AppliedLimit, ...]
    counted: tuple[AppliedLimit, ...]
    lease_keys: tuple[str, ...]
    # Those of all models and those of one are scopes of their own.
    scope_count: int
    # As the plan has them.
    scopes: bytes
    forms: bytes
    kinds: bytes
    sizes: bytes
    leases: bytes


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
        scopes = (
            ("organization", self._organization_id),
            ("project", project_id),
            ("api_key", api_key_id),
            ("member", user_id),
        )
        parts = [
            self._part(scope, scope_id, model, now)
            for scope, scope_id in scopes
            if scope_id is not None and (scope, scope_id) in self._quotas
        ]
        if not parts:
            return Plan((), (), (), b"")
        lease_keys = tuple(key for part in parts for key in part.lease_keys)
        return Plan(
            limits=tuple(limit for part in parts for limit in part.limits),
            counted=tuple(limit for part in parts for limit in part.counted),
            lease_keys=lease_keys,
            packed=b"".join(
                (
                    struct.pack("<B", sum(part.scope_count for part in parts)),
                    *(part.scopes for part in parts),
                    *(part.forms for part in parts),
                    *(part.kinds for part in parts),
                    *(part.sizes for part in parts),
                    struct.pack("<B", len(lease_keys)),
                    *(part.leases for part in parts),
                )
            ),
        )

    def _part(self, scope: str, scope_id: int, model: str, now: datetime) -> _Part:
        part = self._parts.get((scope, scope_id, model))
        if part is None:
            if len(self._parts) >= PARTS_LIMIT:
                self._parts.clear()
            quotas = [quota for quota in self._quotas[scope, scope_id] if quota.model in ("", model)]
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
    """The counters in a field of that hash, with their values (scripts/counters.lua)."""
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
    return _Part(
        limits=tuple(limits),
        counted=tuple(counted),
        lease_keys=tuple(_lease_key(limit) for limit in leases),
        scope_count=len(by_scope),
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
    """Its place in the amounts of a call, as the scripts count."""
    return KINDS.index(kind) + 1


def _size(limit: AppliedLimit) -> float:
    if limit.form == "window":
        return limit.quota.limit
    return MINUTE_US / limit.quota.limit if limit.quota.limit else 0


def _pack_header(limits: list[AppliedLimit]) -> bytes:
    count = len(limits)
    header = struct.pack(f"<B{count}d", count, *(limit.counter for limit in limits))
    return struct.pack("<H", len(header)) + header


def _pack_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<H", len(encoded)) + encoded
