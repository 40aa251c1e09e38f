"""Cost of admission: reserve and settle of a call, by number of limits and of keys, beside a general client.

`python -m benchmarks.admission` needs VALKEY_URL (or starts an embedded store) and prints the table of
docs/benchmarks/admission.md; with --write, writes it. Variants run in turn, round by round, since other work on the
machine moves absolute figures: compare within the table. CPU is of this process and, from INFO, of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import redis.asyncio

os.environ.setdefault("LOG_LEVEL", "WARNING")
from tests import conftest  # noqa: F401 - the environment that settings need, and stores when none are given

# isort: split
from django.conf import settings

from api import credit
from api.admission import LEASE_MS, Admission, Demand, _apply
from api.auth import Caller
from api.valkey import Valkey
from inference_grpc.events import Usage
from portal.quotas.snapshot import Limits, QuotaLimit

REPORT = Path("docs/benchmarks/admission.md")
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
ORGANIZATION = 1
AT_ONCE = 32
CREDIT_NANO = 10**17
KINDS = ("requests:minute", "tokens:minute", "requests:day", "spend:day")


@dataclass(frozen=True)
class Variant:
    name: str
    limits: int
    keys: int
    is_general: bool = False


@dataclass
class Sample:
    client_us: float
    server_us: float
    scripts: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000, help="calls of a variant in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=500_000, help="API keys of the largest variant")
    parser.add_argument("--write", action="store_true", help=f"write the table into {REPORT}")
    options = parser.parse_args()
    table = asyncio.run(measure(options.calls, options.rounds, options.keys))
    print(table)
    if options.write:
        head, _, rest = REPORT.read_text().partition(BEGIN)
        REPORT.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


async def measure(calls: int, rounds: int, most_keys: int) -> str:
    variants = [
        *(Variant(f"{limits} limits, 1 key", limits, 1) for limits in (0, 1, 4, 12)),
        Variant(f"12 limits, {most_keys:,} keys", 12, most_keys),
        Variant("12 limits, 1 key, the same script through redis-py", 12, 1, is_general=True),
    ]
    samples: dict[Variant, list[Sample]] = {variant: [] for variant in variants}
    rig = Rig()
    await rig.start(most_keys)
    try:
        for _ in range(rounds):
            for variant in variants:
                samples[variant].append(await rig.run(variant, calls))
    finally:
        await rig.close()
    base = statistics.median(sample.client_us + sample.server_us for sample in samples[variants[1]])
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
        f"{rounds} rounds of {calls} calls, {AT_ONCE} at once, medians.",
        "",
        "| variant | us CPU per call, gateway | us CPU per call, Valkey | against 1 limit | scripts sent per call |",
        "| --- | --- | --- | --- | --- |",
    ]
    for variant, rows in samples.items():
        client, server = (statistics.median(getattr(row, name) for row in rows) for name in ("client_us", "server_us"))
        scripts = statistics.median(row.scripts for row in rows)
        lines.append(
            f"| {variant.name} | {client:.0f} | {server:.0f} | {(client + server) / base:.2f} | {scripts:.2f} |"
        )
    return "\n".join(lines)


DEMAND = Demand("model", 1_000_000, 100, 100, "USD")
USAGE = Usage(prompt_tokens=80, completion_tokens=90)


def limits_of(count: int, key_id: int) -> Limits:
    """`count` limits with room: four kinds of the organization, then of its project, then of the key."""
    quotas = []
    for number in range(count):
        kind, _, window = KINDS[number % len(KINDS)].partition(":")
        scope, scope_id = (("organization", 1), ("project", 1), ("api_key", key_id))[number // len(KINDS)]
        quotas.append(QuotaLimit(number, scope, scope_id, "", "", "hard", kind, window, 10**12))
    return Limits(ORGANIZATION, False, "UTC", tuple(quotas))


class Rig:
    """Real admission over a real Valkey; only PostgreSQL's part (limits, first load of credit) is put there before."""

    async def start(self, most_keys: int) -> None:
        self.valkey = Valkey(settings.VALKEY_URL)
        await self.valkey.start()
        self.admission = Admission(self.valkey, is_hearing=lambda: True)
        self.general = redis.asyncio.Redis.from_url(settings.VALKEY_URL, max_connections=AT_ONCE)
        if await self.general.dbsize():
            raise SystemExit("VALKEY_URL names a database that is in use; name an empty one, or unset it.")
        await self.general.hset(credit.key(ORGANIZATION), "available", CREDIT_NANO)
        await self._load_counters(most_keys)

    async def close(self) -> None:
        await self.general.flushdb()
        await self.general.aclose()
        await self.valkey.close()

    async def run(self, variant: Variant, calls: int) -> Sample:
        async def ours(key_id: int) -> None:
            self.admission._limits[ORGANIZATION] = (time.monotonic(), limits_of(variant.limits, key_id))
            caller = Caller(ORGANIZATION, 1, key_id, "benchmark", None)
            reservation = await self.admission.reserve(caller, uuid.uuid4(), DEMAND)
            await self.admission.settle(reservation, cost_nano=500_000, usage=USAGE)

        call = self._through_general(variant.limits) if variant.is_general else ours
        before, cpu = await self._server(), time.process_time()
        turn = iter(range(calls))

        async def work() -> None:
            for number in turn:
                await call(number * 7919 % variant.keys)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        client_s = time.process_time() - cpu
        after = await self._server()
        return Sample(
            client_us=client_s * 1e6 / calls,
            server_us=(after[0] - before[0]) * 1e6 / calls,
            scripts=(after[1] - before[1]) / calls,
        )

    def _through_general(self, limits: int) -> Callable[[int], Awaitable[None]]:
        reserve = self.general.register_script(credit.script_source("reserve"))
        settle = self.general.register_script(credit.script_source("settle"))

        async def call(key_id: int) -> None:
            request_id = str(uuid.uuid4())
            applied = [_apply(quota, "UTC", DEMAND) for quota in limits_of(limits, key_id).quotas]
            keys = [credit.key(ORGANIZATION), *(limit.key for limit in applied)]
            arguments: list[object] = [request_id, 1_000_000, LEASE_MS]
            for limit in applied:
                arguments += [limit.form, limit.quota.limit, limit.amount, limit.lifetime_s, 1]
            await reserve(keys, arguments)
            arguments = [request_id, 500_000, request_id]
            for limit in applied:
                arguments += [limit.form, limit.quota.limit, limit.amount, limit.amount]
            await settle(keys, arguments)

        return call

    async def _load_counters(self, most_keys: int) -> None:
        """Each key has been used before: its bucket and its calendar windows are there."""
        soon = int(time.time() * 1_000_000)
        names = [_apply(quota, "UTC", DEMAND).key for quota in limits_of(12, 0).quotas]
        shared = [name for name in names if name.startswith("use:") and ":api_key:" not in name]
        windows = [name for name in names if name.startswith("use:api_key:0:")]
        buckets = [name for name in names if name.startswith("rate:api_key:0:")]
        async with self.general.pipeline(transaction=False) as pipe:
            for name in shared:
                pipe.hset(name, "used", 0)
            await pipe.execute()
        for first in range(0, most_keys, 10_000):
            async with self.general.pipeline(transaction=False) as pipe:
                for key_id in range(first, min(first + 10_000, most_keys)):
                    for name in windows:
                        pipe.hset(name.replace(":0:", f":{key_id}:", 1), "used", 0)
                    for name in buckets:
                        pipe.hset(name.replace(":0:", f":{key_id}:", 1), "at", soon)
                await pipe.execute()

    async def _server(self) -> tuple[float, int]:
        info = await self.general.info("all")
        return info["used_cpu_user"] + info["used_cpu_sys"], info.get("cmdstat_evalsha", {}).get("calls", 0)


if __name__ == "__main__":
    main()
