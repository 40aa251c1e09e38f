"""The drill: three tenants call the whole product while its parts are killed, and then every account must agree.

Callers hang up, the engine lies about some of its counts, and engine, gateway, PostgreSQL, Valkey and worker are killed
with SIGKILL, each in turn. Then reconciliation gets its time, the months are invoiced, and the drill asks: does each
call that somebody saw have one record with the same tokens? Do records, ledger and invoices have the same sum to the
nano-unit? Is nothing held? Do record and receipt of all but one call in ten thousand agree when first compared, with
nothing excused? It exits with 1 when one answer is no.

    make drill                           100,000 calls
    make drill ARGS="--calls 3000"       a small one
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.drill.caller import Clock, Load
from benchmarks.drill.faults import Faults
from benchmarks.drill.report import Recorded, Report
from config.local.state import RunFolder
from tests.end_to_end.stack import ROOT, Stack

REPORT = Path("docs/benchmarks/drill.md")
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
# Wrong receipts are disagreements like any other; the goal is one in 10,000.
LIES_SHARE = 8 / 100_000
SETTLE_TIMEOUT_S = 240.0
# Looks, a second apart, at which nothing may change.
QUIET_LOOKS = 3


def inside(stack: Stack, command: str) -> Any:
    """One command of `benchmarks.drill.inside`, with the product's own environment."""
    environment = RunFolder(stack.var_dir).read_environment()
    assert environment is not None
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.drill.inside", command],
        cwd=ROOT,
        env={**os.environ, **environment, "LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if result.returncode:
        raise RuntimeError(f"{command} failed:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout)


async def call_under_faults(stack: Stack, load: Load, at_once: int, rounds: int, outage_s: float) -> Faults:
    faults = Faults(stack, load, rounds, outage_s)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(at_once))
        group.create_task(faults.run())
        group.create_task(_tell(load))
    return faults


async def _tell(load: Load) -> None:
    began, told = time.monotonic(), 0
    while load.served < load.calls:
        await asyncio.sleep(1)
        if load.served - told >= max(1000, load.calls // 20):
            told = load.served
            print(f"  {told:,} calls, {told / (time.monotonic() - began):,.0f}/s", flush=True)


def await_settled(stack: Stack) -> bool:
    """Until no record is started, no receipt waits and no journal has more, and that stays so for some looks: a caller
    that hung up at the very end may have left a request that nobody has read yet. The beat's own tasks do the work,
    nothing is called by hand.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    query = """
        SELECT (SELECT COUNT(*) FROM billing_usage_record WHERE status = 'started'),
               (SELECT COUNT(*) FROM billing_receipt WHERE match_class = 'pending'),
               (SELECT COUNT(*) FROM billing_usage_record record WHERE expects_receipt
                   AND status IN ('completed', 'cancelled') AND prompt_tokens + completion_tokens > 0 AND NOT EXISTS (
                    SELECT 1 FROM billing_receipt receipt WHERE receipt.request_id = record.request_id)),
               (SELECT COUNT(*) FROM billing_usage_record), (SELECT COUNT(*) FROM billing_receipt)
    """
    seen: tuple[Any, ...] = ()
    quiet_looks = unpulled = 0
    while time.monotonic() < deadline:
        looked = stack.rows(query)[0]
        quiet_looks = quiet_looks + 1 if looked == seen and looked[:3] == (0, 0, 0) else 0
        seen = looked
        if quiet_looks >= QUIET_LOOKS:
            unpulled = inside(stack, "unpulled")
            if unpulled == 0 and stack.rows(query)[0] == seen:
                return True
            quiet_looks = 0
        time.sleep(1)
    print(
        f"  not settled after {SETTLE_TIMEOUT_S:g} s: started, pending, without receipt, records, receipts = {seen};"
        f" {unpulled} in the journals",
        flush=True,
    )
    return False


def run(options: argparse.Namespace, var_dir: Path) -> Report:
    clock = Clock()
    stack = Stack(
        var_dir,
        extra_environment={
            "ENGINE_KIND": "scripted",
            "ENGINE_MAX_SEQUENCES": "64",
            "LOG_LEVEL": "WARNING",
            # Short, so that the drill ends soon; what they decide is the same.
            "REQUEST_TIMEOUT_S": "30",
            "RECEIPT_GRACE_S": str(options.grace),
            "STALE_MARGIN_S": str(options.grace),
        },
    )
    with clock("start"):
        stack.start()
    try:
        tenants = inside(stack, "tenants")
        load = Load(
            stack.port,
            [tenant["key"] for tenant in tenants],
            options.calls,
            hang_ups=options.hang_ups,
            falsified=round(options.calls * LIES_SHARE) if options.falsified is None else options.falsified,
            seed=options.seed,
        )
        print(f"{options.calls:,} calls of {len(tenants)} tenants, {options.at_once} at once", flush=True)
        with clock("calls"):
            faults = asyncio.run(call_under_faults(stack, load, options.at_once, options.rounds, options.outage))
        with clock("settling"):
            await_settled(stack)
        with clock("books"):
            books = inside(stack, "books")
        records, mismatches, finished_after_s = _recorded(stack), _mismatches(stack), _finished_after_s(stack)
    finally:
        with suppress(subprocess.TimeoutExpired):
            stack.stop()
    return Report(tenants, load, faults.done, books, records, mismatches, finished_after_s, clock.spans, _cpu_s())


def _cpu_s() -> float:
    """CPU seconds of this process and of every program that it started and that has ended by now."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _recorded(stack: Stack) -> dict[str, Recorded]:
    query = """
        SELECT record.request_id::text, record.organization_id, record.error_code, record.completion_tokens,
               record.completion_tokens + COALESCE(SUM(adjustment.completion_tokens), 0)::bigint,
               record.cost_nano + COALESCE(SUM(adjustment.cost_nano), 0)::bigint
          FROM billing_usage_record record
          LEFT JOIN billing_usage_adjustment adjustment ON adjustment.record_id = record.request_id
         GROUP BY record.request_id
    """
    return {row[0]: Recorded(*row[1:]) for row in stack.rows(query)}


def _mismatches(stack: Stack) -> dict[str, str]:
    """Class by request id. Of several receipts of a call the served one tells it, as on the page of rates."""
    query = """
        SELECT * FROM (
            SELECT DISTINCT ON (request_id) request_id::text, match_class
              FROM billing_receipt ORDER BY request_id, status = 'failed', id) receipt
         WHERE match_class <> 'equal'
    """
    return dict(stack.rows(query))


def _finished_after_s(stack: Stack) -> float:
    """From the end of a call at the engine to the ledger, the longest of those that their gateway never finished."""
    query = """
        SELECT COALESCE(MAX(extract(epoch FROM posted.created_at - receipt.finished_at)), 0)::float8
          FROM billing_receipt receipt
          JOIN billing_ledger_transaction posted ON posted.key = 'usage:' || receipt.request_id
         WHERE receipt.match_class = 'unfinished'
    """
    return float(stack.rows(query)[0][0])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=24, help="Callers at the same time.")
    parser.add_argument("--rounds", type=int, default=2, help="How often each program is killed.")
    parser.add_argument("--outage", type=float, default=30.0, help="Seconds that PostgreSQL is kept away, once.")
    parser.add_argument("--hang-ups", type=float, default=0.3, help="Share of the callers that leave early.")
    parser.add_argument("--falsified", type=int, help="Receipts with wrong counts; 8 of 100,000 calls, if not given.")
    parser.add_argument("--grace", type=int, default=30, help="Seconds that a gateway, or its successor, has.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="State folder to use and to keep, for a look afterwards.")
    parser.add_argument("--write", action="store_true", help=f"Write {REPORT}.")
    return parser


def main() -> int:
    options = parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="drill-") as folder:
        report = run(options, options.keep or Path(folder))
    text = report.text()
    print(text)
    if options.write:
        head, _, rest = REPORT.read_text().partition(BEGIN)
        REPORT.write_text(f"{head}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
