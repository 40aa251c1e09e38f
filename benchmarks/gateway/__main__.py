"""CPU of the gateway for each request and chunk, beside a bare pass-through in the same run.

`python -m benchmarks.gateway` needs DATABASE_URL and VALKEY_URL (or starts embedded stores), works in a database of its
own, and prints the tables of docs/benchmarks/gateway.md; with --write, writes them. Contenders run in turn, round by
round, since other work on the machine moves absolute figures: compare within a table.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.gateway.load import Result, quantile, run

os.environ.setdefault("LOG_LEVEL", "WARNING")
from tests import conftest as stores  # the environment that settings need, and stores when none are given

REPORT = Path("docs/benchmarks/gateway.md")
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class Load:
    name: str
    prompt: str
    calls: int
    at_once: int
    stream: bool = True


LOADS = (
    Load("paced, 128 tokens at 50/s, 8 at once", "PACE:50 TOKENS:128", 24, 8),
    Load("paced, 128 tokens at 50/s, 32 at once", "PACE:50 TOKENS:128", 96, 32),
    Load("paced, 128 tokens at 50/s, 128 at once", "PACE:50 TOKENS:128", 256, 128),
    Load("as fast as it goes, 128 tokens, 32 at once", "TOKENS:128", 320, 32),
    Load("plain, 16 tokens, 32 at once", "TOKENS:16", 640, 32, stream=False),
)


@dataclass
class Contender:
    name: str
    url: str
    pid: int
    headers: dict[str, str]
    model: str


def processes(pid: int) -> Iterator[int]:
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from processes(int(child))


def cpu_s(pid: int) -> float:
    """User and system time of a process and its children."""
    total = 0
    for each in processes(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def rss_mib(pid: int) -> float:
    return sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) * PAGE_MIB for each in processes(pid))


def measure(contender: Contender, load: Load) -> tuple[Result, float]:
    body: dict[str, Any] = {
        # An engine gives the tokens of all its sequences at its step: 20 ms apart where the load is paced.
        "model": contender.model or ("in-steps" if "PACE" in load.prompt else "at-once"),
        "messages": [{"role": "user", "content": f"{load.prompt} Tell me something about the sea."}],
        "max_tokens": 256,
        "stream": load.stream,
    }
    if load.stream:
        body["stream_options"] = {"include_usage": True}
    url = f"{contender.url}/v1/chat/completions"
    before = cpu_s(contender.pid)
    result = asyncio.run(run(url, contender.headers, body, calls=load.calls, at_once=load.at_once))
    time.sleep(0.3)  # what is written after the answers counts, too
    return result, cpu_s(contender.pid) - before


def row(contender: Contender, load: Load, rounds: list[tuple[Result, float]]) -> list[float]:
    """CPU ms a request, CPU µs a token, tokens/s, TTFT p50 and p99 ms, gap p99 ms: medians of the rounds."""
    per_round = [
        [
            1000 * cpu / result.calls,
            1e6 * cpu / result.tokens,
            result.tokens / result.wall_s,
            1000 * quantile(result.ttft_s, 0.5),
            1000 * quantile(result.ttft_s, 0.99),
            1000 * quantile(result.gaps_s, 0.99),
        ]
        for result, cpu in rounds
    ]
    return [statistics.median(column) for column in zip(*per_round, strict=True)]


def table(load: Load, contenders: list[Contender], rounds: int) -> str:
    measured: dict[str, list[tuple[Result, float]]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        measure(contender, Load(load.name, load.prompt, load.at_once, load.at_once, load.stream))  # warm
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            measured[contender.name].append(measure(contender, load))
    rows = {contender.name: row(contender, load, measured[contender.name]) for contender in contenders}
    bare = rows[contenders[0].name]
    lines = [
        f"### {load.name[0].upper()}{load.name[1:]}\n",
        "| | CPU ms/request | ratio | CPU µs/token | tokens/s | TTFT p50 ms | p99 | gap p99 ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, figures in rows.items():
        cpu, per_token, speed, ttft, ttft_p99, gap = figures
        lines.append(
            f"| {name} | {cpu:.2f} | {cpu / bare[0]:.2f} | {per_token:.0f} | {speed:.0f} | {ttft:.0f} |"
            f" {ttft_p99:.0f} | {gap:.0f} |"
        )
    return "\n".join(lines)


@contextmanager
def spawned(command: list[str], is_ready: Callable[[], bool], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command], env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + 60
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2):
            return True
    except OSError as error:
        return getattr(error, "code", 0) in (404, 405)


@contextmanager
def contenders() -> Iterator[list[Contender]]:
    """Pass-through, then the gateway before the same upstream, then the gateway before the scripted engine."""
    from config.local.program import free_port
    from portal.quotas import snapshot
    from tests.api.live.service import SERVERS, Engine, Web, database_of_its_own, make_account, make_model

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(database_of_its_own("benchmark_gateway"))
        snapshot.client().flushdb()
        upstream = f"http://127.0.0.1:{free_port()}"
        port = upstream.rpartition(":")[2]
        stack.enter_context(spawned(["-m", "benchmarks.gateway.upstream", port], lambda: answers(f"{upstream}/")))
        bare = f"http://127.0.0.1:{free_port()}"
        command = ["-m", *SERVERS["granian"], bare.rpartition(":")[2], "benchmarks.gateway.passthrough:application"]
        process = stack.enter_context(
            spawned(command, lambda: answers(f"{bare}/health"), PASSTHROUGH_UPSTREAM=upstream)
        )
        os.environ["ENGINE_MAX_SEQUENCES"] = "256"
        engines = []
        for scenario in ("step_ms = 20.0", "step_ms = 1.0"):
            engines.append(Engine(folder, scenario))
            engines[-1].start()
            stack.callback(engines[-1].stop)
        make_model("over-http", f"{upstream}/v1", kind="openai_compatible", upstream="m")
        make_model("in-steps", engines[0].address)
        make_model("at-once", engines[1].address)
        web = Web(folder, "granian")
        web.start()
        stack.callback(web.stop)
        assert web.popen is not None
        account = make_account(web)
        headers = {"authorization": f"Bearer {account.secret}"}
        yield [
            Contender("pass-through, HTTP upstream", bare, process.pid, {}, "m"),
            Contender("gateway, same upstream", web.url, web.popen.pid, headers, "over-http"),
            Contender("gateway, scripted engine over gRPC", web.url, web.popen.pid, headers, ""),
        ]
        account.assert_books_agree()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {REPORT}")
    options = parser.parse_args()
    assert stores.HAS_WEB
    with contenders() as all_of_them:
        tables = []
        for load in LOADS:
            tables.append(table(load, all_of_them, options.rounds))
            print(tables[-1], "\n", flush=True)
        memory = ", ".join(f"{c.name}: {rss_mib(c.pid):.0f} MiB" for c in all_of_them[:2])
    tables.append(f"Resident memory afterwards, server and worker together. {memory}.")
    print(tables[-1])
    if options.write:
        text = REPORT.read_text()
        head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
        REPORT.write_text(f"{head}{BEGIN}\n\n" + "\n\n".join(tables) + f"\n\n{END}{tail}")


if __name__ == "__main__":
    main()
