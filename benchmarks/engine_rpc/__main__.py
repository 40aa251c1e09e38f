"""CPU per token of one Session for all requests against one Generate call per request, in the same run.

Scripted engine in a process of its own, client in this one, both on uvloop. CPU is user + system time of all threads
of either process. The two forms take turns, so that a change of the machine's speed meets both; compare ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvloop

from inference_grpc.client import EngineClient
from inference_grpc.core.request import Request
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.protos.v1 import inference_pb2_grpc as pb_grpc
from inference_grpc.wire import request_to_proto

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PACED_TOKENS_PER_S = 50


@dataclass(frozen=True)
class Cell:
    sequences: int
    is_paced: bool
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.sequences} sequences, {'50 tokens/s each' if self.is_paced else 'no pause between steps'}"


@dataclass(frozen=True)
class Cost:
    """us of CPU per token."""

    server: float
    client: float
    tokens_per_s: float

    @property
    def both(self) -> float:
        return self.server + self.client


def server_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def request_of(cell: Cell) -> Request:
    pace = f" PACE:{PACED_TOKENS_PER_S}" if cell.is_paced else ""
    return Request(str(uuid.uuid4()), f"TOKENS:{cell.tokens}{pace}")


async def measure(pid: int, cell: Cell, one: Callable[[Cell], Awaitable[int]]) -> Cost:
    server, client, wall = server_cpu_s(pid), time.process_time(), time.monotonic()
    tokens = sum(await asyncio.gather(*(one(cell) for _ in range(cell.sequences))))
    assert tokens == cell.sequences * cell.tokens, "every token must arrive"
    wall, client, server = time.monotonic() - wall, time.process_time() - client, server_cpu_s(pid) - server
    return Cost(1e6 * server / tokens, 1e6 * client / tokens, tokens / wall)


async def compare(address: str, pid: int, cells: list[Cell], rounds: int) -> None:
    async with EngineClient(address, buffer_bytes=1 << 30) as client, grpc.aio.insecure_channel(address) as channel:
        await client.connect()
        stub = pb_grpc.InferenceStub(channel)

        async def by_session(cell: Cell) -> int:
            stream = client.submit(request_of(cell))
            while await stream.next():
                pass
            return stream.usage.completion_tokens

        async def by_call(cell: Cell) -> int:
            count = 0
            async for step in stub.Generate(request_to_proto(request_of(cell), 0)):
                for row, kind in enumerate(step.kinds):
                    if kind == pb.TEXT:
                        count = step.completion_tokens[row]
            return count

        warm = Cell(8, False, 200)
        await measure(pid, warm, by_session)
        await measure(pid, warm, by_call)
        print("| load | one call per request: server + client = both | Session | ratio | tokens/s, call / Session |")
        print("| --- | --- | --- | --- | --- |")
        for cell in cells:
            calls, sessions = [], []
            for _ in range(rounds):
                calls.append(await measure(pid, cell, by_call))
                sessions.append(await measure(pid, cell, by_session))
            ratio = statistics.median(call.both / session.both for call, session in zip(calls, sessions, strict=True))
            call, session = median(calls), median(sessions)
            print(
                f"| {cell.name} | {call.server:.0f} + {call.client:.0f} = {call.both:.0f} "
                f"| {session.server:.0f} + {session.client:.0f} = {session.both:.0f} | {ratio:.1f} "
                f"| {call.tokens_per_s:,.0f} / {session.tokens_per_s:,.0f} |"
            )


def median(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.server for cost in costs),
        statistics.median(cost.client for cost in costs),
        statistics.median(cost.tokens_per_s for cost in costs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_rpc", description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paced-tokens", type=int, default=150, help="tokens of a paced request")
    parser.add_argument("--free-tokens", type=int, default=1500, help="tokens of an unpaced request")
    options = parser.parse_args()
    cells = [Cell(count, True, options.paced_tokens) for count in options.sequences]
    cells += [Cell(count, False, options.free_tokens) for count in options.sequences]
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder, "scenario.toml")
        scenario.write_text("step_ms = 0\n")
        command = [sys.executable, "-m", "inference_grpc.server", "--engine", "scripted", "--listen", "127.0.0.1:0"]
        command += ["--journal", folder, "--scenario", str(scenario), "--max-sequences", str(max(options.sequences))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1].removeprefix("grpc=")
            try:
                uvloop.run(compare(address, process.pid, cells, options.rounds))
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
