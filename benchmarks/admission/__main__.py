"""Cost of admission: reserve and settle of a call, by number of limits and of keys, beside a general client.

`python -m benchmarks.admission` needs VALKEY_URL (or starts an embedded store) and prints the tables of
docs/benchmarks/admission.md; with --write, writes them. CPU is of this process and, from INFO, of the server. Other
work on the machine only adds to it: variants run in turn, round by round. Each figure is the least of its rounds; a
ratio is the middle one of the rounds' own ratios, since both of its sides met the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis.asyncio

os.environ.setdefault("LOG_LEVEL", "WARNING")
from tests import conftest  # noqa: F401 - the environment that settings need, and stores when none are given

# isort: split
from django.conf import settings

from api import counters, credit
from api.admission import LEASE_MS, Admission, Demand
from api.auth import Caller
from api.counters import KeyLimits, Plan, Planner
from api.functions import LIBRARY
from api.valkey import Argument, Valkey
from inference_grpc.events import Usage
from portal.quotas.snapshot import Limits, QuotaLimit, Scope

REPORT = Path("docs/benchmarks/admission.md")
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
ORGANIZATION = 1
AT_ONCE = 32
CREDIT_NANO = 10**15
KINDS = ("requests:minute", "tokens:minute", "requests:day", "spend:day", "output_tokens:minute", "tokens:month")


@dataclass(frozen=True)
class Variant:
    name: str
    limits: int
    keys: int
    # Whether two of the limits are the key's own.
    has_own: bool = True
    is_general: bool = False


@dataclass
class Sample:
    client_us: float
    server_us: float
    # Commands that a call sent to Valkey to be admitted, and to be settled.
    to_admit: float
    to_settle: float

    @property
    def total_us(self) -> float:
        return self.client_us + self.server_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000, help="calls of a variant in a round")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--keys", type=int, default=500_000, help="API keys of the largest variant")
    parser.add_argument("--write", action="store_true", help=f"write the table into {REPORT}")
    options = parser.parse_args()
    table = asyncio.run(measure(options.calls, options.rounds, options.keys))
    print(table)
    if options.write:
        head, _, rest = REPORT.read_text().partition(BEGIN)
        REPORT.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


async def measure(calls: int, rounds: int, most_keys: int) -> str:
    by_limits = [Variant(f"{limits} limits, 1 key", limits, 1) for limits in (0, 1, 2, 4, 8, 12)]
    key_counts = [keys for keys in (1, 100, 10_000, most_keys) if keys <= most_keys]
    by_keys = [Variant(f"12 limits, {keys:,} keys", 12, keys) for keys in dict.fromkeys(key_counts)]
    by_keys.append(Variant(f"12 limits, none of the keys' own, {most_keys:,} keys", 12, most_keys, has_own=False))
    general = Variant("12 limits, 1 key, the same functions through redis-py", 12, 1, is_general=True)
    variants = [*by_limits, *by_keys[1:], general]
    samples: dict[Variant, list[Sample]] = {variant: [] for variant in variants}
    rig = Rig()
    await rig.start(most_keys)
    try:
        for _ in range(rounds):
            for variant in variants:
                samples[variant].append(await rig.run(variant, calls))
    finally:
        await rig.close()
    version = (await rig.server_version()).decode()
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d}, {_processor()}, {os.cpu_count()} cores that other work used too (load "
            f"average {os.getloadavg()[0]:.1f}), Python {platform.python_version()}, Valkey {version}; {rounds} rounds "
            f"of {calls} calls, {AT_ONCE} at once; least of the rounds; ratios are the middle one of each round's, "
            "with the quartiles.",
            "",
            *_table(samples, by_limits, against=by_limits[1]),
            "",
            *_table(samples, [by_limits[-1], *by_keys[1:]], against=by_limits[-1]),
            "",
            *_table(samples, [by_limits[-1], general], against=by_limits[-1]),
        ]
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _table(samples: dict[Variant, list[Sample]], variants: list[Variant], *, against: Variant) -> list[str]:
    lines = [
        f"| variant | us CPU a call, gateway | Valkey | sum | against {against.name} | quartiles "
        "| Valkey calls to admit | to settle |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for variant in variants:
        rows = samples[variant]
        client, server, total = (min(getattr(row, name) for row in rows) for name in FIGURES)
        ratios = [row.total_us / base.total_us for row, base in zip(rows, samples[against], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        to_admit, to_settle = (statistics.mean(getattr(row, name) for row in rows) for name in COMMANDS)
        lines.append(
            f"| {variant.name} | {client:.1f} | {server:.1f} | {total:.1f} | {middle:.2f} | {low:.2f} to {high:.2f} | "
            f"{to_admit:.2f} | {to_settle:.2f} |"
        )
    return lines


FIGURES = ("client_us", "server_us", "total_us")
COMMANDS = ("to_admit", "to_settle")
DEMAND = Demand("model", 1_000_000, 100, 100, "USD")
USAGE = Usage(prompt_tokens=80, completion_tokens=90)


# Of twelve limits; with fewer, a key has none of its own.
OF_KEY = 2


def limits_of(count: int) -> Limits:
    """`count` limits with room, of the organization and its project in turn."""
    scopes: tuple[Scope, ...] = ("organization", "project")
    return Limits(ORGANIZATION, False, "UTC", tuple(_limit(scopes[n % 2], 1, n + 1, n // 2) for n in range(count)))


def limits_of_key(key_id: int) -> tuple[QuotaLimit, ...]:
    first = 100 + OF_KEY * key_id
    return tuple(_limit("api_key", key_id, first + number, number + 1) for number in range(OF_KEY))


def _limit(scope: Scope, scope_id: int, quota_id: int, number: int) -> QuotaLimit:
    kind, _, window = KINDS[number % len(KINDS)].partition(":")
    return QuotaLimit(quota_id, scope, scope_id, "", "", "hard", kind, window, 10**12)


class Rig:
    """Real admission over a real Valkey; only PostgreSQL's part (limits, first load of credit) is put there before."""

    async def start(self, most_keys: int) -> None:
        self.valkey = CountingValkey(settings.VALKEY_URL)
        await self.valkey.start()
        self.admission = Admission(self.valkey, is_hearing=lambda: True)
        self.general = redis.asyncio.Redis.from_url(settings.VALKEY_URL, max_connections=AT_ONCE)
        if await self.general.dbsize():
            raise SystemExit("VALKEY_URL names a database that is in use; name an empty one, or unset it.")
        await self.general.hset(credit.key(ORGANIZATION), "available", CREDIT_NANO)
        self.planners = {count: Planner(limits_of(count)) for count in (0, 1, 2, 4, 8, 12, 12 - OF_KEY)}
        # As api/auth.py keeps them: of the keys that have called.
        self.callers: dict[tuple[bool, int], Caller] = {}
        # Calls made so far: rounds go on where the last one ended, so that many keys are many.
        self.called = 0
        await self._load_counters(most_keys)

    async def close(self) -> None:
        await self.general.flushdb()
        await self.valkey.close()

    async def server_version(self) -> bytes:
        info = await self.general.info("server")
        await self.general.aclose()
        return str(info.get("valkey_version") or info["redis_version"]).encode()

    def caller(self, key_id: int, *, has_own: bool) -> Caller:
        """As it is made when a key is read."""
        found = self.callers.get((has_own, key_id))
        if found is None:
            limits = KeyLimits(limits_of_key(key_id) if has_own else ())
            found = self.callers[has_own, key_id] = Caller(ORGANIZATION, 1, key_id, "benchmark", None, limits)
        return found

    def plan(self, key: KeyLimits) -> Plan:
        """With twelve limits, two of them the key's own."""
        planner = self.planners[12 - OF_KEY]
        return planner.plan(project_id=1, key=key, user_id=None, model=DEMAND.model, now=datetime.now(UTC))

    async def run(self, variant: Variant, calls: int) -> Sample:
        has_own = variant.limits == 12 and variant.has_own
        planner = self.planners[variant.limits - OF_KEY * has_own]
        self.admission._planners[ORGANIZATION] = (time.monotonic() + 3600, False, planner)
        numbers = range(self.called, self.called + calls)
        callers = [self.caller(number * 7919 % variant.keys, has_own=has_own) for number in numbers]
        self.called += calls

        async def ours(caller: Caller) -> None:
            reservation = await self.admission.reserve(caller, uuid.uuid4(), DEMAND)
            await self.admission.settle(reservation, cost_nano=500_000, usage=USAGE)

        call = self._through_general() if variant.is_general else ours
        self.valkey.sent.clear()
        before, cpu = await self._server_us(), time.process_time()
        turn = iter(callers)

        async def work() -> None:
            for caller in turn:
                await call(caller)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        client_s = time.process_time() - cpu
        after = await self._server_us()
        sent = self.valkey.sent
        if variant.is_general:
            to_admit = to_settle = calls
        else:
            to_settle = sent[LIBRARY.function("settle")]
            to_admit = sent.total() - to_settle
        return Sample(client_s * 1e6 / calls, (after - before) / calls, to_admit / calls, to_settle / calls)

    def _through_general(self) -> Callable[[Caller], Awaitable[None]]:
        reserve, settle = LIBRARY.function("reserve"), LIBRARY.function("settle")
        keys = [credit.key(ORGANIZATION), counters.key(ORGANIZATION)]

        async def call(caller: Caller) -> None:
            request_id, plan = str(uuid.uuid4()), self.plan(caller.limits).packed
            reserved: list[bytes | int] = [DEMAND.hold_nano, LEASE_MS, DEMAND.input_tokens, DEMAND.output_tokens, plan]
            await self.general.fcall(reserve, 2, *keys, request_id, *reserved)
            used: list[bytes | int | str] = [500_000, request_id, 1, USAGE.prompt_tokens, USAGE.completion_tokens, b"?"]
            await self.general.fcall(settle, 2, *keys, request_id, *used)

        return call

    async def _load_counters(self, most_keys: int) -> None:
        """Each key has been used before: its counters are there."""
        soon = int(time.time() * 1_000_000)
        for first in range(0, most_keys, 10_000):
            async with self.general.pipeline(transaction=False) as pipe:
                for key_id in range(first, min(first + 10_000, most_keys)):
                    values: defaultdict[str, dict[int, float]] = defaultdict(dict)
                    for limit in self.plan(KeyLimits(limits_of_key(key_id))).limits:
                        values[limit.scope][limit.counter] = soon if limit.form == "bucket" else 0
                    slots = [part for scope, each in values.items() for part in (scope, counters.write(each))]
                    pipe.execute_command(
                        "HSETEX", counters.key(ORGANIZATION), "EX", 86400, "FIELDS", len(values), *slots
                    )
                await pipe.execute()
        keys = [credit.key(ORGANIZATION), counters.key(ORGANIZATION)]
        none = KeyLimits()
        plan = self.planners[12].plan(project_id=1, key=none, user_id=None, model=DEMAND.model, now=datetime.now(UTC))
        for limit in plan.limits:
            if limit.form == "window":
                place = counters.kind_place(limit.quota.kind)
                await self.valkey.run("load_window", keys, [limit.scope, limit.counter, place, 0, 1])

    async def _server_us(self) -> float:
        info = await self.general.info("cpu")
        return float(1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]))


class CountingValkey(Valkey):
    """Counts what it sends: functions by their names, as other commands."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: Counter[str] = Counter()

    def call(self, *arguments: Argument) -> Awaitable[Any]:
        self.sent[str(arguments[1] if arguments[0] == "FCALL" else arguments[0])] += 1
        return super().call(*arguments)


if __name__ == "__main__":
    main()
