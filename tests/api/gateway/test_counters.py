"""The counters of limits in Valkey, by the scripts that move them: windows, refunds, changed limits, lost copies."""

from __future__ import annotations

import random as random_
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from api import counters, credit, functions
from api.counters import AppliedLimit, KeyLimits, Plan, Planner
from portal.quotas.snapshot import Limits, QuotaLimit

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
CREDIT = 10**12


class Books:
    """One organization's limits and what its calls do to them."""

    def __init__(self, *quotas: QuotaLimit) -> None:
        self.organization_id = 10**6 + uuid.uuid4().int % 10**6
        self.valkey = redis.Redis.from_url(settings.VALKEY_URL)
        self.keys = [credit.key(self.organization_id), counters.key(self.organization_id)]
        self.valkey.hset(self.keys[0], "available", CREDIT)
        self.set_limits(*quotas)

    def set_limits(self, *quotas: QuotaLimit) -> None:
        of_key = [quota for quota in quotas if quota.scope == "api_key"]
        others = [quota for quota in quotas if quota.scope != "api_key"]
        self.key = KeyLimits(tuple(of_key))
        self.planner = Planner(Limits(self.organization_id, False, "UTC", tuple(others)))

    def plan(self, model: str = "m", now: datetime = NOW) -> Plan:
        return self.planner.plan(project_id=3, key=self.key, user_id=5, model=model, now=now)

    def run(self, name: str, keys: list[str], *arguments: Any) -> Any:
        return functions.call(self.valkey, name, keys, *arguments)

    def load(self, plan: Plan, used: int = 0) -> None:
        for limit in plan.limits:
            if limit.form == "window":
                self.load_window(limit, used)

    def load_window(self, limit: AppliedLimit, used: int, **calls: int) -> Any:
        """`calls` are the parts of it that calls are which were loaded too."""
        pairs = [each for call in calls.items() for each in call]
        kind = counters.kind_place(limit.quota.kind)
        return self.run("load_window", self.keys, limit.scope, limit.counter, kind, used, 0, *pairs)

    def reserve(self, plan: Plan, *, hold: int = 100, tokens: tuple[int, int] = (30, 70), name: str = "") -> Any:
        self.last = name or uuid.uuid4().hex
        answer = self.run("reserve", self.keys, self.last, hold, 60_000, *tokens, plan.packed)
        return [b"ok", plan.exceeded(answer)] if isinstance(answer, bytes) else answer

    def settle(self, plan: Plan, *, cost: int, tokens: tuple[int, int], name: str = "") -> Any:
        name = name or self.last
        return self.run("settle", self.keys, name, cost, name, 1, *tokens, plan.packed, *plan.lease_keys)

    def left(self, plan: Plan) -> dict[int, int]:
        """What each counted limit of the plan has left; of a bucket, its raw value taken from the limit."""
        state = {}
        scopes = self.valkey.hgetall(self.keys[1])
        for limit in plan.limits:
            slots = counters.read(scopes.get(limit.scope.encode(), b""))
            if limit.counter in slots:
                state[limit.quota.id] = limit.quota.limit - int(slots[limit.counter])
        return state

    def dump(self) -> dict[bytes, Any]:
        return {
            name: self.valkey.hgetall(name) if self.valkey.type(name) == b"hash" else self.valkey.zrange(name, 0, -1)
            for name in map(str.encode, [*self.keys, *self.plan().lease_keys])
        }


def quota(number: int, kind: str, window: str, limit: int, **fields: Any) -> QuotaLimit:
    scope = fields.pop("scope", "api_key")
    scope_id = {"api_key": 7, "project": 3, "member": 5}.get(scope, 0)
    values = {"model": "", "mode": "hard", **fields}
    return QuotaLimit(number, scope, scope_id, "", values["model"], values["mode"], kind, window, limit)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    valkey = redis.Redis.from_url(settings.VALKEY_URL)
    for pattern in ("credit:1??????", "counts:1??????", "live:api_key:7*"):
        for name in valkey.scan_iter(pattern):
            valkey.delete(name)


def test_a_window_that_is_not_known_is_asked_for_and_then_counts() -> None:
    books = Books(quota(1, "tokens", "day", 1000), quota(2, "requests", "minute", 10), quota(3, "spend", "month", 500))
    plan = books.plan()
    assert books.reserve(plan) == [b"unknown", 1, 3]
    books.load(plan, used=200)
    books.load(plan, used=999)
    assert books.reserve(plan)[0] == b"ok"
    assert books.left(plan) == {1: 700, 3: 200} | {2: books.left(plan)[2]}


def test_a_refused_call_changes_nothing_and_names_the_limit_that_was_made_first() -> None:
    rows = (
        quota(9, "tokens", "day", 50),
        quota(4, "spend", "month", 50, scope="project"),
        quota(5, "tokens", "minute", 10_000),
        quota(6, "concurrency", "now", 3),
    )
    books = Books(*rows)
    plan = books.plan()
    books.load(plan)
    before = books.dump()
    assert books.reserve(plan) == [b"limit", 4, 50, -1]
    assert books.dump() == before
    books.set_limits(*rows[2:])
    plan = books.plan()
    assert books.reserve(plan, hold=CREDIT + 1) == [b"credit", str(CREDIT).encode()]
    assert books.dump() == before


def test_what_was_not_used_comes_back_to_each_counter_alone() -> None:
    books = Books(
        quota(1, "input_tokens", "day", 1000),
        quota(2, "output_tokens", "day", 1000),
        quota(3, "tokens", "day", 1000),
        quota(4, "spend", "day", 1000),
        quota(5, "requests", "day", 1000),
        quota(6, "concurrency", "now", 1),
    )
    plan = books.plan()
    books.load(plan)
    assert books.reserve(plan)[0] == b"ok"
    assert books.left(plan) == {1: 970, 2: 930, 3: 900, 4: 900, 5: 999}
    first = books.last
    assert books.reserve(plan)[:2] == [b"limit", 6]
    assert books.settle(plan, cost=10, tokens=(20, 5), name=first) == 1
    assert books.settle(plan, cost=10, tokens=(20, 5), name=first) == 0
    assert books.left(plan) == {1: 980, 2: 995, 3: 975, 4: 990, 5: 999}
    assert books.reserve(plan)[0] == b"ok"


def test_a_call_that_was_loaded_with_its_windows_is_corrected_when_it_ends() -> None:
    """After a loss: the hold came back from PostgreSQL, two windows with the call's estimate, one limit is new."""
    books = Books(quota(1, "output_tokens", "day", 1000), quota(2, "spend", "month", 1000, scope="project"))
    plan = books.plan()
    day, month = plan.limits if plan.limits[0].quota.id == 1 else plan.limits[::-1]
    books.valkey.hset(books.keys[0], "lost", "100:1700000000000")
    assert books.load_window(day, 270, lost=70) == 1
    assert books.load_window(day, 999, lost=70) == 0
    # One that ended before PostgreSQL was read is in what is used; it is not added again.
    books.valkey.hset(books.keys[0], "ended", "50:1700000000000")
    assert books.load_window(month, 140, lost=100, ended=40) == 1
    assert books.left(plan) == {1: 730, 2: 860}
    assert books.load_window(day, 5, settled=1) == 0
    assert books.settle(plan, cost=60, tokens=(20, 10), name="lost") == 1
    assert books.left(plan) == {1: 790, 2: 900}
    assert books.settle(plan, cost=40, tokens=(0, 0), name="ended") == 1
    assert books.left(plan) == {1: 790, 2: 900}


def test_a_window_is_read_again_when_a_call_ended_meanwhile() -> None:
    books = Books(quota(1, "tokens", "day", 1000))
    (day,) = books.plan().limits
    assert books.load_window(day, 300, gone=100) == -1
    assert books.left(books.plan()) == {}
    assert books.load_window(day, 250) == 1
    assert books.left(books.plan()) == {1: 750}


def test_limits_that_come_and_go_leave_the_other_counters_as_they_are() -> None:
    first, second = quota(1, "tokens", "day", 1000), quota(2, "spend", "day", 1000)
    books = Books(first, second)
    books.load(books.plan())
    assert books.reserve(books.plan())[0] == b"ok"
    running, running_plan = books.last, books.plan()
    books.set_limits(second, quota(3, "requests", "minute", 5), quota(4, "output_tokens", "day", 1000))
    plan = books.plan()
    assert books.reserve(plan) == [b"unknown", 4]
    books.load(plan, used=50)
    assert books.reserve(plan)[0] == b"ok"
    assert books.left(plan)[2] == 800
    # The call from before settles its own counters, those that are gone from the plan too.
    assert books.settle(running_plan, cost=0, tokens=(0, 0), name=running) == 1
    assert books.left(plan) == {2: 900, 3: books.left(plan)[3], 4: 880}
    assert books.left(running_plan)[1] == 1000


def test_a_call_settles_in_the_window_in_which_it_began() -> None:
    books = Books(quota(1, "tokens", "day", 1000), quota(2, "tokens", "month", 10_000))
    yesterday, today = books.plan(now=NOW - timedelta(days=1)), books.plan(now=NOW)
    books.load(yesterday)
    assert books.reserve(yesterday)[0] == b"ok"
    running = books.last
    assert books.reserve(today) == [b"unknown", 1]
    books.load(today)
    assert books.reserve(today)[0] == b"ok"
    assert books.settle(yesterday, cost=0, tokens=(10, 10), name=running) == 1
    assert books.left(yesterday) == {1: 980, 2: 9880}
    assert books.left(today) == {1: 900, 2: 9880}


def test_limits_of_one_model_count_beside_those_of_all() -> None:
    books = Books(quota(1, "tokens", "day", 1000), quota(2, "tokens", "day", 150, model="m"))
    books.load(books.plan("m"))
    assert books.reserve(books.plan("m"))[0] == b"ok"
    assert books.reserve(books.plan("m"))[:3] == [b"limit", 2, 50]
    assert books.reserve(books.plan("other"))[0] == b"ok"
    assert books.left(books.plan("m")) == {1: 800, 2: 50}


def test_soft_and_shadow_limits_count_and_are_named_but_refuse_nothing() -> None:
    books = Books(quota(1, "tokens", "day", 150, mode="soft"), quota(2, "requests", "minute", 1, mode="shadow"))
    books.load(books.plan())
    assert books.reserve(books.plan())[1] == []
    assert books.reserve(books.plan())[1] == [1, 2]
    assert books.left(books.plan())[1] == -50


def test_a_call_that_valkey_had_lost_is_added_when_it_ends() -> None:
    books = Books(quota(1, "tokens", "day", 1000), quota(2, "requests", "day", 10))
    plan = books.plan()
    books.valkey.hset(books.keys[0], "running", f"100:{1}")
    books.load(plan)
    assert books.settle(plan, cost=10, tokens=(20, 5), name="running") == 1
    assert books.left(plan) == {1: 975, 2: 9}


@hypothesis_settings(deadline=None, max_examples=8)
@given(random=st.randoms(use_true_random=False), budget=st.integers(0, 3000), tokens_a_day=st.integers(0, 3000))
def test_no_interleaving_of_fifty_calls_overspends_or_leaks_a_hold(
    random: random_.Random, budget: int, tokens_a_day: int
) -> None:
    """Each call is a few scripts, and these are atomic: an interleaving is an order of the scripts of all calls."""
    books = Books(
        quota(1, "tokens", "day", tokens_a_day, scope="member"),
        quota(2, "spend", "lifetime", 2500),
        quota(3, "requests", "minute", 40, scope="project"),
        quota(4, "concurrency", "now", 20),
    )
    books.valkey.hset(books.keys[0], "available", budget)
    plan = books.plan()
    books.load(plan)
    spent = taken = served = 0
    # What is left to do for each call, and the id under which it holds.
    ids = {number: f"call-{number}" for number in range(50)}
    acts = {number: random.choice(["s", "s", "s", "ts", "r", "ss"]) for number in ids}
    holds = {number: (random.randrange(300), random.randrange(100), random.randrange(200)) for number in ids}
    waiting, running = list(ids), []
    while waiting or running:
        if waiting and (not running or random.random() < 0.5):
            number = waiting.pop(random.randrange(len(waiting)))
            hold, *tokens = holds[number]
            answer = books.reserve(plan, hold=hold, tokens=(tokens[0], tokens[1]), name=ids[number])
            if answer[0] == b"ok":
                running.append(number)
                served += 1
        else:
            number = random.choice(running)
            act, acts[number] = acts[number][0], acts[number][1:]
            hold, *tokens = holds[number]
            if act == "t":
                books.run("transfer", books.keys, ids[number], f"next-{number}")
                ids[number] = f"next-{number}"
            else:
                cost, input_tokens = (0, 0) if act == "r" else (random.randint(0, hold), random.randint(0, tokens[0]))
                lease = f"call-{number}"
                arguments = (cost, lease, int(act == "s"), input_tokens, 0, plan.packed, *plan.lease_keys)
                if books.run("settle", books.keys, ids[number], *arguments):
                    spent, taken = spent + cost, taken + input_tokens
            if not acts[number]:
                running.remove(number)
        fields = {name: value for name, value in books.valkey.hgetall(books.keys[0]).items() if name != b"token"}
        available = int(fields.pop(b"available"))
        assert available >= 0
        assert available + sum(int(value.partition(b":")[0]) for value in fields.values()) + spent == budget
        left = books.left(plan)
        assert left[1] >= 0
        assert left[2] >= 0
        assert len(fields) <= 20
    assert served > 0 or budget < 300 or tokens_a_day < 300
    assert not fields
    assert available == budget - spent
    assert (left[1], left[2]) == (tokens_a_day - taken, 2500 - spent)
    assert not any(books.valkey.zcard(name) for name in plan.lease_keys)


def without_shape(plan: Plan) -> Plan:
    """The same plan as only the long way takes it (lua/shapes.lua)."""
    assert plan.packed[-1] == counters.SHAPE_MARK
    return replace(plan, packed=plan.packed[: -4 - plan.packed[-2]])


@pytest.mark.parametrize("seed", range(10))
def test_the_short_way_decides_and_counts_as_the_long_one(seed: int) -> None:
    """The same calls on two organizations, with limits of every form, kind and mode in several scopes."""
    random = random_.Random(seed)
    kinds = [(kind, window) for kind in counters.KINDS for window in ("minute", "day", "month")]
    scopes, modes = ("project", "api_key", "member"), ("hard", "hard", "hard", "soft", "shadow")
    rows = [
        quota(number, kind, window, random.randint(5, 2000), scope=random.choice(scopes), mode=random.choice(modes))
        for number, (kind, window) in enumerate(random.sample(kinds, random.randint(1, 12)), start=1)
    ]
    both = [Books(*rows), Books(*rows)]
    plans = [both[0].plan(), without_shape(both[1].plan())]
    windows = {limit.quota.id for limit in plans[0].limits if limit.form == "window"}
    admitted_count = 0
    for books, plan in zip(both, plans, strict=True):
        books.load(plan)
    running: list[list[str]] = []
    for _ in range(40):
        if running and random.random() < 0.4:
            names = running.pop(random.randrange(len(running)))
            cost, tokens = random.randrange(300), (random.randrange(100), random.randrange(100))
            for books, plan, name in zip(both, plans, names, strict=True):
                assert books.settle(plan, cost=cost, tokens=tokens, name=name) == 1
        else:
            hold, asked = random.randrange(400), (random.randrange(150), random.randrange(150))
            answers = [books.reserve(plan, hold=hold, tokens=asked) for books, plan in zip(both, plans, strict=True)]
            if {answer[0] for answer in answers} == {b"ok"}:
                running.append([books.last for books in both])
                admitted_count += 1
                assert set(answers[0][1]) & windows == set(answers[1][1]) & windows
            elif b"ok" in {answer[0] for answer in answers}:
                # A bucket has filled between the two.
                admitted = 0 if answers[0][0] == b"ok" else 1
                assert answers[1 - admitted][1] not in windows
                books = both[admitted]
                assert books.run("settle", books.keys, books.last, 0, books.last, 0, 0, 0, b"?") == 1
            elif answers[0][1] in windows:
                assert answers[0] == answers[1]
        left = [books.left(plan) for books, plan in zip(both, plans, strict=True)]
        assert all(left[0][number] == left[1][number] for number in windows)
        assert left[0].keys() == left[1].keys()
        # Of buckets, microseconds.
        assert all(abs(left[0][number] - left[1][number]) < 2_000_000 for number in left[0])
        assert both[0].valkey.hget(both[0].keys[0], "available") == both[1].valkey.hget(both[1].keys[0], "available")
    assert admitted_count


def test_a_call_with_room_goes_the_short_way_and_prolongs_the_life_of_counters() -> None:
    books = Books(quota(1, "tokens", "day", 150), quota(2, "spend", "month", 10**6))
    plan = books.plan()
    books.load(plan)

    def life_after_a_call(plan: Plan) -> int:
        books.valkey.execute_command("HEXPIRE", books.keys[1], 1000, "FIELDS", 1, "api_key:7")
        assert books.reserve(plan)[0] == b"ok"
        (seconds,) = books.valkey.execute_command("HTTL", books.keys[1], "FIELDS", 1, "api_key:7")
        books.settle(plan, cost=0, tokens=(0, 0))
        return int(seconds)

    # Counters that were just loaded go the long way once.
    life_after_a_call(plan)
    # The short way does not look at the buckets and adds their longest minute to a day.
    assert 86_400 < life_after_a_call(plan) <= 86_460
    assert 86_300 < life_after_a_call(without_shape(plan)) <= 86_400
    assert 86_300 < life_after_a_call(of_an_older_version(plan)) <= 86_400


def of_an_older_version(plan: Plan) -> Plan:
    """As plans were before they said where their leases are."""
    shape = plan.packed[-4 - plan.packed[-2] : -4]
    return replace(plan, packed=without_shape(plan).packed + shape + bytes([len(shape), 255]))


@hypothesis_settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_in_any_order_of_acts_a_window_is_what_ran_and_what_runs(data: st.DataObject) -> None:
    """Against a plain model: calls begin, end, are refused; limits come, go and change; the day turns."""
    all_rows = [quota(number, "tokens", window, 700) for number, window in ((1, "day"), (2, "month"), (3, "week"))]
    books = Books(*all_rows)
    used: dict[int, int] = {}
    running: list[tuple[str, Plan, int]] = []
    now = NOW
    for step in range(data.draw(st.integers(5, 25))):
        act = data.draw(st.sampled_from(["begin", "begin", "end", "change", "night"]))
        if act == "change":
            chosen = data.draw(st.lists(st.sampled_from(all_rows), unique=True, min_size=1))
            books.set_limits(*chosen)
        elif act == "night":
            now += timedelta(days=1)
        elif act == "begin":
            plan = books.plan(now=now)
            amount = data.draw(st.integers(0, 300))
            answer = books.reserve(plan, tokens=(0, amount), hold=0, name=f"call-{step}")
            if answer[0] == b"unknown":
                for limit in plan.limits:
                    if limit.counter not in used:
                        used[limit.counter] = 0
                        books.load_window(limit, 0)
                answer = books.reserve(plan, tokens=(0, amount), hold=0, name=f"call-{step}")
            has_room = all(used[limit.counter] + amount <= limit.quota.limit for limit in plan.limits)
            assert (answer[0] == b"ok") == has_room
            if has_room:
                running.append((f"call-{step}", plan, amount))
                for limit in plan.limits:
                    used[limit.counter] += amount
        elif running:
            name, plan, amount = running.pop(data.draw(st.integers(0, len(running) - 1)))
            took = data.draw(st.integers(0, amount))
            assert books.settle(plan, cost=0, tokens=(0, took), name=name) == 1
            for limit in plan.limits:
                used[limit.counter] += took - amount
    for limit in books.plan(now=now).limits:
        if limit.counter in used:
            assert books.left(books.plan(now=now))[limit.quota.id] == limit.quota.limit - used[limit.counter]
    assert books.valkey.hget(books.keys[0], "available") == str(CREDIT).encode()
