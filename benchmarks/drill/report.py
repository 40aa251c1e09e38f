"""What the drill found, as the figures of its page, and whether that is good."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from benchmarks.drill.caller import Load, Outcome
from benchmarks.drill.faults import Fault

RAW_GATE_PERCENT = 99.99
# Error code of the records that reconciliation writes for work of an engine without one.
UNRECORDED = "unrecorded"


class Recorded(NamedTuple):
    """A record: output tokens as first written, tokens and cost with every correction."""

    organization_id: int
    error_code: str
    first_tokens: int
    tokens: int
    cost_nano: int


@dataclass
class Check:
    what: str
    found: str
    is_good: bool


@dataclass
class Report:
    tenants: list[dict[str, Any]]
    load: Load
    faults: list[Fault]
    books: dict[str, Any]
    # By request id: what the record says, and the class of a call that is not equal.
    records: dict[str, Recorded]
    mismatches: dict[str, str]
    # The longest that a call whose gateway was killed waited for its place in the ledger.
    finished_after_s: float
    spans: dict[str, float]
    # Of product and callers together, from start to stop.
    cpu_s: float

    @property
    def is_good(self) -> bool:
        return all(check.is_good for check in self.checks)

    @cached_property
    def checks(self) -> list[Check]:
        books, rates = self.books, self.books["rates"]
        total = max(1, rates["total"])
        open_count = rates["gateway_only"] + rates["pending"] + rates["unsettled"]
        repaired = 100 * (total - open_count) / total
        raw = self.raw_percent
        sums = (books["records_nano"], books["ledger_nano"], books["invoiced_nano"])
        missing, wrong = self._seen_by_callers()
        return [
            Check("answers that somebody saw, without a record", f"{missing:,}", missing == 0),
            Check("whole answers whose record says other counts, or costs nothing", f"{wrong:,}", wrong == 0),
            Check("wrong receipts that nobody noticed", f"{self._unnoticed:,}", self._unnoticed == 0),
            Check(
                "raw: calls with two accounts that agree when first compared", f"{raw:.4f} %", raw >= RAW_GATE_PERCENT
            ),
            Check("after repair", f"{repaired:.4f} %", open_count == 0),
            Check("sum of records", f"{sums[0]:,} nano", sums[0] > 0),
            Check("sum of ledger", f"{sums[1]:,} nano", sums[1] == sums[0]),
            Check("sum of invoices", f"{sums[2]:,} nano", sums[2] == sums[0]),
            Check("ledger transactions together", f"{books['ledger_rest_nano']} nano", books["ledger_rest_nano"] == 0),
            Check("held", f"{books['held_nano']} nano", books["held_nano"] == 0),
            Check("projections that differ from the facts", f"{len(books['differences'])}", not books["differences"]),
            Check(
                "rollups that differ from the records",
                f"{books['rollup_differences']}",
                not books["rollup_differences"],
            ),
            Check("invoices that failed", f"{len(books['invoices_failed'])}", not books["invoices_failed"]),
        ]

    @property
    def raw_percent(self) -> float:
        """Of the calls with two accounts; nothing else is left out, the receipts that were made to lie are in it."""
        rates = self.books["rates"]
        return 100 * rates["equal"] / max(1, rates["total"] - rates["unfinished"])

    @cached_property
    def _unnoticed(self) -> int:
        """Whole answers whose receipt was ordered to be wrong, and for which reconciliation found nothing."""
        return sum(
            1
            for outcome in self.load.outcomes
            if outcome.is_falsified and outcome.tokens is not None and outcome.request_id not in self.mismatches
        )

    def _seen_by_callers(self) -> tuple[int, int]:
        missing = wrong = 0
        for outcome in self.load.outcomes:
            if not outcome.request_id:
                continue
            row = self.records.get(outcome.request_id)
            organization_id = self.tenants[outcome.tenant]["organization_id"]
            if row is None or row.organization_id != organization_id or row.error_code == UNRECORDED:
                missing += 1
            elif outcome.tokens is not None and not self._says(row, outcome):
                wrong += 1
        return missing, wrong

    def _says(self, row: Recorded, outcome: Outcome) -> bool:
        """Whether the record tells what the caller was told. Where the receipt lies, what was written before it came
        does; unless the gateway died first, and the lie is all there is."""
        if not outcome.is_falsified:
            tokens = row.tokens
        elif self.mismatches.get(outcome.request_id) == "differ":
            tokens = row.first_tokens
        else:
            tokens = outcome.tokens or 0
        return tokens == outcome.tokens and row.cost_nano > 0

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        rates, load = self.books["rates"], self.load
        yield (
            f"{datetime.now(UTC):%Y-%m-%d}: {load.served:,} calls of {len(self.tenants)} tenants,"
            f" {load.hang_ups:.0%} of the callers hang up;"
            f" {self.books['records']:,} records, {self.books['receipts']:,} receipts,"
            f" {self.books['adjustments']:,} adjustments."
        )
        yield ""
        yield "| question | answer | |"
        yield "| --- | --- | --- |"
        for check in self.checks:
            yield f"| {check.what} | {check.found} | {'good' if check.is_good else '**bad**'} |"
        yield ""
        total, unfinished = max(1, rates["total"]), rates["unfinished"]
        yield (
            f"Raw is of {rates['total'] - unfinished:,} calls with two accounts, and {load.lies} of those that do not"
            f" agree are receipts that were made to lie. {unfinished:,} calls have one account, since a side was killed"
            f" in the middle of them; each was finished from the account that is left, the last one"
            f" {self.finished_after_s:.0f} s after its end. Counted as calls that do not agree, they make the raw rate"
            f" {100 * rates['equal'] / total:.4f} % of {rates['total']:,} calls:"
        )
        classes = ("equal", "differ", "unfinished", "engine_only", "gateway_only", "pending")
        yield ", ".join(f"{name.replace('_', ' ')} {rates[name]:,}" for name in classes) + "."
        yield ""
        yield "| tenant | day | calls | equal | differ | unfinished | engine only | gateway only |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        names = {tenant["organization_id"]: tenant["name"] for tenant in self.tenants}
        for organization_id, day, *counts in self.books["by_tenant"]:
            name = names.get(organization_id, "unknown")
            yield f"| {name} | {day} | " + " | ".join(f"{count:,}" for count in counts[:6]) + " |"
        yield ""
        yield "| killed | at call | back after |"
        yield "| --- | --- | --- |"
        for fault in self.faults:
            yield f"| {fault.victim} | {fault.at_call:,} | {fault.back_after_s:.1f} s |"
        yield ""
        yield "What callers saw: " + _listed(load.counts) + "."
        yield "How records ended: " + _listed(self.books["statuses"]) + "."
        yield ""
        rate = load.served / max(0.001, self.spans["calls"])
        spans = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.spans.items())
        yield (
            f"Time: {sum(self.spans.values()) / 60:.1f} minutes ({spans}); {rate:,.0f} calls/s with everything on"
            f" {os.cpu_count()} cores that others use too (load"
            f" average {os.getloadavg()[0]:.1f}); Python {platform.python_version()}. CPU: {self.cpu_s:,.0f} s of"
            f" product and callers, {1000 * self.cpu_s / max(1, load.served):.1f} ms a call, start and books in it."
        )


def _listed(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name.strip()} {count:,}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))
