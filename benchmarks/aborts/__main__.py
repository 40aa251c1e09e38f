"""Callers that hang up, tens of thousands of times: what stays of them in the gateway, in Valkey and in the engine.

`python -m benchmarks.aborts [--streams 50000] [--write]` needs DATABASE_URL and VALKEY_URL (or starts embedded
stores), works in a database of its own, and prints the table of docs/benchmarks/aborts.md; with --write, writes it. A
real gateway and server, scripted engine, every stream left by its caller: before the answer, at its head, or after
some tokens. After each tenth it waits until nothing runs and looks at what is held. It fails (1) where something
stayed or was not metered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

os.environ.setdefault("LOG_LEVEL", "WARNING")
from benchmarks.gateway.__main__ import processes
from tests import conftest as stores  # the environment that settings need, and stores when none are given

REPORT = Path("docs/benchmarks/aborts.md")
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
HEAD_END = b"\r\n\r\n"
REQUEST_ID = re.compile(rb"x-request-id: ([0-9a-f-]{36})", re.IGNORECASE)
# A piece of text in a frame; the first frame has an empty one.
DELTA = b'"content":"'
EMPTY = b'"content":""'
# A token every 5 ms, more than any caller waits for.
PROMPT = "TOKENS:400 PACE:200 Tell me something about the sea."
CALL_TIMEOUT_S = 60.0
CHECKPOINTS = 10
DRAIN_S = 60.0
# More than this for each stream, over the second half, is growth: ten MiB in fifty thousand.
GROWTH_BYTES = 200


@dataclass(slots=True)
class Load:
    port: int
    body: bytes
    headers: str
    # Request id of each stream whose answer began, with the pieces of text that its caller saw.
    seen: dict[UUID, int] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)

    async def run(self, streams: int, at_once: int, seed: int) -> None:
        turns, rnd = iter(range(streams)), random.Random(seed)

        async def caller() -> None:
            for _ in turns:
                try:
                    async with asyncio.timeout(CALL_TIMEOUT_S):
                        self.ends[await self._leave(rnd)] += 1
                except (OSError, EOFError, TimeoutError) as error:
                    self.ends[type(error).__name__] += 1

        await asyncio.gather(*(caller() for _ in range(at_once)))

    async def _leave(self, rnd: random.Random) -> str:
        """One stream and how far it came."""
        patience = rnd.random()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            writer.write(self.headers.encode() + self.body)
            if patience < 0.15:
                await asyncio.sleep(rnd.uniform(0, 0.05))
                return "before the answer"
            head = await reader.readuntil(HEAD_END)
            if not head.startswith(b"HTTP/1.1 200"):
                return head[9:12].decode()
            found = REQUEST_ID.search(head)
            assert found is not None, head
            request_id = UUID(found[1].decode())
            self.seen[request_id] = 0
            if patience < 0.3:
                return "at its head"
            text, wanted = b"", rnd.randint(1, 20)
            while self.seen[request_id] < wanted and (piece := await reader.read(1 << 16)):
                text += piece
                self.seen[request_id] = text.count(DELTA) - text.count(EMPTY)
            return "after some tokens"
        finally:
            writer.transport.abort()


@dataclass(frozen=True, slots=True)
class Held:
    """What is there while nothing runs."""

    streams: int
    gateway_mib: float
    gateway_files: int
    engine_mib: float
    valkey_mib: float
    running: int
    sequences: int
    holds: int
    leases: int


class Rig:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        from billing.ledger.services import grant_credit
        from config.local.program import free_port
        from tests.api.live.service import Engine, Web, make_account, make_model, set_limit

        os.environ["ENGINE_MAX_SEQUENCES"] = "256"
        self.engine = Engine(folder, "step_ms = 5.0")
        self.engine.start()
        stack.callback(self.engine.stop)
        make_model("sea", self.engine.address)
        self.metrics_port = free_port()
        self.web = Web(folder, "granian", GATEWAY_METRICS_PORT=str(self.metrics_port))
        self.web.start()
        stack.callback(self.web.stop)
        self.account = make_account(self.web)
        self.organization_id = self.account.organization.id
        grant_credit(organization_id=self.organization_id, amount_nano=10**15, reason="aborts", key="aborts")
        set_limit(self.account, "concurrency", "now", 10_000)
        set_limit(self.account, "requests", "minute", 10**9)
        set_limit(self.account, "tokens", "day", 10**12)
        set_limit(self.account, "spend", "lifetime", 10**16, project=self.account.project)
        message = {"role": "user", "content": PROMPT}
        body = json.dumps({"model": "sea", "stream": True, "max_tokens": 400, "messages": [message]}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.account.secret}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.load = Load(self.web.port, body, head)

    def until_quiet(self) -> None:
        """Also takes the engine's receipts, as the product does every few seconds."""
        from api.tasks import pull_from
        from tests.api.live.service import eventually

        eventually(lambda: self.look(0).holds == 0 and self.look(0).sequences == 0, DRAIN_S)
        while pull_from(self.engine.address):
            pass

    def look(self, streams: int) -> Held:
        from inference_grpc.client import EngineClient
        from portal.quotas import snapshot

        async def ask() -> int:
            async with EngineClient(self.engine.address) as client:
                info = await client.get_info()
                return info.running + info.waiting

        valkey: Any = snapshot.client()
        holds = {*valkey.hkeys(f"credit:{self.organization_id}")} - {"available", "token"}
        web, engine = self.web.popen, self.engine.popen
        assert web is not None
        assert engine is not None
        return Held(
            streams=streams,
            gateway_mib=resident_mib(web.pid),
            gateway_files=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in processes(web.pid)),
            engine_mib=resident_mib(engine.pid),
            valkey_mib=int(valkey.info("memory")["used_memory"]) / 2**20,
            running=self._running(),
            sequences=asyncio.run(ask()),
            holds=len(holds),
            leases=sum(valkey.zcard(key) for key in valkey.scan_iter("live:*")),
        )

    def _running(self) -> int:
        from urllib.request import urlopen

        with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as answer:
            found = re.findall(rb"^gateway_num_requests_running{[^}]*} ([0-9.]+)", answer.read(), re.MULTILINE)
        return int(sum(map(float, found)))

    def faults(self) -> list[str]:
        """What was not metered as it was delivered."""
        from django.conf import settings

        from billing.ledger.selectors import balance_nano
        from billing.reconciliation.models import Receipt
        from billing.usage.models import UsageRecord

        records = {
            record.request_id: record for record in UsageRecord.objects.filter(organization_id=self.organization_id)
        }
        receipts = {receipt.request_id: receipt.completion_tokens for receipt in Receipt.objects.all()}
        found: Counter[str] = Counter()
        for request_id, pieces in self.load.seen.items():
            record = records.get(request_id)
            found["without a record"] += record is None
            found["metered less than was seen"] += record is not None and record.completion_tokens < pieces
        for request_id, record in records.items():
            found[f"left {record.status}"] += record.status not in ("cancelled", "completed")
            said = receipts.get(request_id, 0)
            found["differs from the engine's receipt"] += record.completion_tokens != said
        found["receipts without a record"] += len(receipts.keys() - records.keys())
        spent = sum(record.cost_nano for record in records.values())
        balance = settings.FREE_CREDIT_NANO + 10**15 - spent
        found["the balance is not credit less cost"] += balance_nano(self.organization_id) != balance
        found["the copy in Valkey is not the balance"] += self.account.copy_nano != balance
        self.records = len(records)
        self.tokens = sum(record.completion_tokens for record in records.values())
        return [f"{what}: {count}" for what, count in found.items() if count]


def resident_mib(pid: int) -> float:
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in processes(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def rig() -> Iterator[Rig]:
    from portal.quotas import snapshot
    from tests.api.live.service import database_of_its_own

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(database_of_its_own("benchmark_aborts"))
        snapshot.client().flushdb()
        yield Rig(folder, stack)


def growth(rows: list[Held], name: str) -> float:
    """Bytes for each stream over the second half: the slope of a line through it."""
    half = rows[len(rows) // 2 :]
    count = len(half)
    x = [row.streams for row in half]
    y = [getattr(row, name) * 2**20 for row in half]
    middle_x, middle_y = sum(x) / count, sum(y) / count
    spread = sum((each - middle_x) ** 2 for each in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=50_000, help="at least 10")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--write", action="store_true", help=f"put the figures into {REPORT}")
    options = parser.parse_args()
    assert stores.HAS_WEB
    began = time.monotonic()
    rows: list[Held] = []
    with rig() as bench:
        for number in range(1, CHECKPOINTS + 1):
            asyncio.run(bench.load.run(options.streams // CHECKPOINTS, options.at_once, seed=number))
            bench.until_quiet()
            rows.append(bench.look(number * (options.streams // CHECKPOINTS)))
            print(rows[-1], flush=True)
        faults = bench.faults()
        wall_s = time.monotonic() - began
    slopes = {name: growth(rows, f"{name}_mib") for name in ("gateway", "engine", "valkey")}
    last = rows[-1]
    faults += [f"{name} grows by {slope:.0f} bytes a stream" for name, slope in slopes.items() if slope > GROWTH_BYTES]
    left = {name: getattr(last, name) for name in ("running", "sequences", "holds", "leases")}
    faults += [f"{name} left: {count}" for name, count in left.items() if count]
    text = report(options, rows, slopes, bench, faults, wall_s)
    print(text)
    if options.write:
        whole = REPORT.read_text()
        head, tail = whole.partition(BEGIN)[0], whole.partition(END)[2]
        REPORT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
    return 1 if faults else 0


def report(
    options: argparse.Namespace,
    rows: list[Held],
    slopes: dict[str, float],
    bench: Rig,
    faults: list[str],
    wall_s: float,
) -> str:
    ends = ", ".join(f"{count:,} {how}" for how, count in bench.load.ends.most_common())
    grows = ", ".join(f"{name} {slope:+.0f}" for name, slope in slopes.items())
    columns = ("streams", "gateway MiB", "its open files", "engine MiB", "Valkey MiB")
    columns += ("requests that run", "sequences", "holds", "leases")
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}: {sum(bench.load.ends.values()):,} streams, {options.at_once} at once, left by "
        f"their callers: {ends}. {wall_s:.0f} s on {os.cpu_count()} cores that other work used too (load average "
        f"{os.getloadavg()[0]:.0f}). {bench.records:,} records, {bench.tokens:,} tokens metered. Bytes that each "
        f"stream of the second half left: {grows}. Not as it should be: {'; '.join(faults) or 'nothing'}.",
        "",
        f"| {' | '.join(columns)} |",
        f"|{' ---: |' * len(columns)}",
    ]
    for row in rows:
        sizes = f"{row.gateway_mib:.1f} | {row.gateway_files} | {row.engine_mib:.1f} | {row.valkey_mib:.2f}"
        left = f"{row.running} | {row.sequences} | {row.holds} | {row.leases}"
        lines.append(f"| {row.streams:,} | {sizes} | {left} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
