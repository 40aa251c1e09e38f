"""Which counters a call moves, in the form that the functions take: a plan (lua/counters.lua says what is in it).

A plan depends on the caller, the model and the day, not on the call. It has two parts, made once and kept: one of the
organization and the project, which all keys of the project share, and one of the key and its member, which is kept with
the key. A call with twelve limits costs what a call with one does, and one of many keys what one of a single key does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil, floor
from typing import Literal, NamedTuple

from portal.quotas.snapshot import Limits, QuotaLimit
from portal.quotas.use import window_bounds

# Parts of plans that are kept: of one organization, for each project with limits and each model; of a key, for a model.
SHARED_PARTS_LIMIT = 20_000
KEY_PARTS_LIMIT = 8
KINDS = ("requests", "input_tokens", "output_tokens", "tokens", "spend")
HOURS = 1 << 20
MINUTE_US = 60_000_000
# Plans with more counters than this go the long way (lua/shapes.lua); there are as many local variables in its code.
MOST_IN_SHAPE = 40
SHAPE_MARK = 254
# What an answer of reserve.lua begins with.
NOW_BYTES = 8
_KIND_PLACES = {kind: place for place, kind in enumerate(KINDS, start=1)}
_LEASE = struct.Struct("<Bdd")
HARD_BUCKET = 1
_FORMS = {("bucket", True): HARD_BUCKET, ("bucket", False): 2, ("window", True): 3, ("window", False): 4}

Form = Literal["bucket", "window", "lease"]
# ("project", 3)
Owner = tuple[str, int]


class AppliedLimit(NamedTuple):
    """One quota and where it is counted: among the slots of `scope`, or for a lease in the set `live:{scope}`."""

    quota: QuotaLimit
    form: Form
    scope: str
    # Tells counters apart: the quota's id and the first hour of the window, which another time zone moves.
    counter: int
    # Of a calendar window: [start, end).
    window_start: datetime | None = None
    window_end: datetime | None = None

    @property
    def is_hard(self) -> bool:
        return self.quota.mode == "hard"


@dataclass(slots=True)
class Part:
    """The limits of the organization and a project, or of a key and a member."""

    limits: tuple[AppliedLimit, ...] = ()
    # The hard limits per minute, each with where its value stands in the part's share of an answer of reserve.lua.
    hard_buckets: tuple[tuple[AppliedLimit, int], ...] = ()
    lease_keys: tuple[str, ...] = ()
    answer_bytes: int = 0
    # Some limit of requests, tokens or spend is 0: there is never room.
    has_none: bool = False
    # As a plan has them: how many counters each scope has, and the rest packed.
    counts: bytes = b""
    scopes: bytes = b""
    forms: bytes = b""
    kinds: bytes = b""
    sizes: bytes = b""
    leases: bytes = b""


NOTHING = Part()


@dataclass(slots=True, eq=False)
class KeyLimits:
    """The limits of one key, as they were read with it, and what was made of them."""

    quotas: tuple[QuotaLimit, ...] = ()
    # By model: the planner's day in which it was made, and the part.
    parts: dict[str, tuple[object, Part]] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """`packed` is the functions' form, empty without limits."""

    shared: Part
    own: Part
    packed: bytes

    @property
    def limits(self) -> tuple[AppliedLimit, ...]:
        return self.shared.limits + self.own.limits

    @property
    def lease_keys(self) -> tuple[str, ...]:
        return self.shared.lease_keys + self.own.lease_keys

    def of(self, quota_id: int) -> AppliedLimit:
        return next(limit for limit in self.limits if limit.quota.id == quota_id)

    def exceeded(self, answer: bytes) -> list[int]:
        """Ids of the quotas that the call had no room in and that refuse nothing."""
        first = NOW_BYTES + self.shared.answer_bytes + self.own.answer_bytes
        return [int(quota_id) for (quota_id,) in struct.iter_unpack("<d", answer[first:])]

    def rates(self, answer: bytes) -> list[tuple[AppliedLimit, int, int]]:
        """Each hard limit per minute with what is left of it and when it is full again in ms."""
        found = []
        (now_us,) = struct.unpack_from("<d", answer)
        for part, first in ((self.shared, NOW_BYTES), (self.own, NOW_BYTES + self.shared.answer_bytes)):
            for limit, place in part.hard_buckets:
                (full_us,) = struct.unpack_from("<d", answer, first + place)
                left = (MINUTE_US - (full_us - now_us)) * limit.quota.limit / MINUTE_US
                found.append((limit, max(0, floor(left + 0.000001)), ceil((full_us - now_us) / 1000)))
        return found


class Planner:
    """Makes the plans of an organization's calls, until a limit of its own or of its projects or members changes."""

    def __init__(self, limits: Limits) -> None:
        self._organization = ("organization", limits.organization_id)
        self._time_zone = limits.time_zone
        self._quotas: dict[Owner, list[QuotaLimit]] = {}
        for quota in limits.quotas:
            self._quotas.setdefault((quota.scope, quota.scope_id), []).append(quota)
        self._shared: dict[tuple[str, Owner | None], Part] = {}
        # Of a calendar window: its first hour, start and end.
        self._windows: dict[str, tuple[int, datetime, datetime]] = {}
        # Calendar windows of every length end at some midnight.
        self._midnight = datetime.min.replace(tzinfo=UTC)
        self._day = object()

    def plan(self, *, project_id: int, key: KeyLimits, user_id: int | None, model: str, now: datetime) -> Plan:
        """The counters of a call of `model` with this key, which `user_id` made."""
        if now >= self._midnight:
            self._shared.clear()
            self._windows.clear()
            self._day = object()
            _, self._midnight = window_bounds("day", self._time_zone, now)
        shared = self._shared_part(project_id, model, now)
        own = self._own_part(key, user_id, model, now)
        if not shared.limits and not own.limits:
            return Plan(shared, own, b"")
        return Plan(shared, own, _pack(shared, own))

    def _shared_part(self, project_id: int, model: str, now: datetime) -> Part:
        project: Owner = ("project", project_id)
        of_project = self._quotas.get(project, ())
        whose = (model, project if of_project else None)
        part = self._shared.get(whose)
        if part is None:
            if len(self._shared) >= SHARED_PARTS_LIMIT:
                self._shared.clear()
            quotas = (*self._quotas.get(self._organization, ()), *of_project)
            part = self._shared[whose] = self._make_part(quotas, model, now)
        return part

    def _own_part(self, key: KeyLimits, user_id: int | None, model: str, now: datetime) -> Part:
        of_member = self._quotas.get(("member", user_id), ()) if user_id else ()
        if not key.quotas and not of_member:
            return NOTHING
        made = key.parts.get(model)
        if made is None or made[0] is not self._day:
            if len(key.parts) >= KEY_PARTS_LIMIT:
                key.parts.clear()
            made = key.parts[model] = self._day, self._make_part((*key.quotas, *of_member), model, now)
        return made[1]

    def _make_part(self, quotas: Sequence[QuotaLimit], model: str, now: datetime) -> Part:
        limits = [self._apply(quota, now) for quota in quotas if quota.model in ("", model)]
        return _make_part(limits) if limits else NOTHING

    def _apply(self, quota: QuotaLimit, now: datetime) -> AppliedLimit:
        # All limits of a scope apply to the same calls.
        scope = f"{quota.scope}:{quota.scope_id}{quota.model and ':'}{quota.model}"
        counter = quota.id * HOURS
        if quota.kind == "concurrency":
            return AppliedLimit(quota, "lease", scope, counter)
        if quota.window == "minute":
            return AppliedLimit(quota, "bucket", scope, counter)
        found = self._windows.get(quota.window)
        if found is None:
            start, end = window_bounds(quota.window, self._time_zone, now)
            found = self._windows[quota.window] = int(start.timestamp()) // 3600, start, end
        hour, start, end = found
        return AppliedLimit(quota, "window", scope, counter + hour, start, end)


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


def _make_part(limits: list[AppliedLimit]) -> Part:
    """Made at the first call of each key, so it is written for speed."""
    part = Part(limits=tuple(limits))
    by_scope: dict[str, list[AppliedLimit]] = {}
    for limit in limits:
        if limit.form == "lease":
            text = f"live:{limit.scope}"
            part.lease_keys += (text,)
            part.leases += _pack_text(text) + _LEASE.pack(limit.is_hard, limit.quota.limit, limit.quota.id)
        else:
            by_scope.setdefault(limit.scope, []).append(limit)
    forms, kinds, sizes = [], [], []
    for scope, group in by_scope.items():
        count = len(group)
        place = part.answer_bytes + 1 + 8 * count
        for limit in group:
            forms.append(_FORMS[limit.form, limit.is_hard])
            kinds.append(_KIND_PLACES[limit.quota.kind])
            sizes.append(_size(limit))
            if forms[-1] == HARD_BUCKET:
                part.hard_buckets += ((limit, place),)
            place += 8
        part.answer_bytes = place
        header = struct.pack(f"<HB{count}d", 1 + 8 * count, count, *[limit.counter for limit in group])
        part.scopes += _pack_text(scope) + header
        part.counts += bytes((count,))
    part.has_none = not all(sizes)
    part.forms, part.kinds, part.sizes = bytes(forms), bytes(kinds), struct.pack(f"<{len(sizes)}d", *sizes)
    return part


def _pack(shared: Part, own: Part) -> bytes:
    counts, forms, kinds = shared.counts + own.counts, shared.forms + own.forms, shared.kinds + own.kinds
    lease_count = len(shared.lease_keys) + len(own.lease_keys)
    scopes = b"".join((bytes((len(counts),)), shared.scopes, own.scopes, forms, kinds, shared.sizes, own.sizes))
    packed = b"".join((scopes, bytes((lease_count,)), shared.leases, own.leases))
    if not 0 < len(forms) <= MOST_IN_SHAPE or shared.has_none or own.has_none:
        return packed
    leases_at = len(scopes) + 1 if lease_count else 0
    shape = counts + forms + kinds
    return b"".join((packed, shape, struct.pack("<HBB", leases_at, len(shape), SHAPE_MARK)))


def kind_place(kind: str) -> int:
    """Its place in the amounts of a call, as the functions count."""
    return _KIND_PLACES[kind]


def _size(limit: AppliedLimit) -> float:
    if limit.form == "window":
        return limit.quota.limit
    return MINUTE_US / limit.quota.limit if limit.quota.limit else 0


def _pack_text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<H", len(encoded)) + encoded
