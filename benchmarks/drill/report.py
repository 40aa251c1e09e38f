"""What the drill found, as a page, and whether that is good."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.drill.caller import Load, Outcome
from benchmarks.drill.faults import Fault

RAW_GATE_PERCENT = 99.99


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
    # Request id to (organization, status, output tokens as first recorded, with corrections).
    records: dict[str, tuple[int, str, int, int]]
    spans: dict[str, float]
    at_once: int

    @property
    def is_good(self) -> bool:
        return all(check.is_good for check in self.checks)

    @cached_property
    def checks(self) -> list[Check]:
        books, rates = self.books, self.books["rates"]
        total = max(1, rates["total"])
        open_count = rates["gateway_only"] + rates["pending"] + rates["unsettled"]
        found_by_id = 100 * (rates["total"] - rates["engine_only"]) / total
        # Their opening row was lost with the gateway or refused by a dying database: no byte of them left.
        may_lack_record = self.at_once * sum(fault.victim.startswith(("web", "postgres")) for fault in self.faults)
        undisturbed = total - rates["unfinished"] - rates["engine_only"] - self._falsified
        raw = 100 * rates["equal"] / max(1, undisturbed)
        repaired = 100 * (total - open_count) / total
        sums = (books["records_nano"], books["ledger_nano"], books["invoiced_nano"])
        missing, wrong = self._seen_by_callers()
        return [
            Check("answers that somebody saw, without a record", f"{missing:,}", missing == 0),
            Check("whole answers whose record says other counts", f"{wrong:,}", wrong == 0),
            Check(
                f"raw: receipts whose call has a record, all but {rates['engine_only']} of calls that a kill refused",
                f"{found_by_id:.4f} %",
                rates["engine_only"] <= may_lack_record,
            ),
            Check(
                "raw: equal, of the calls that no kill cut and no receipt lied about",
                f"{raw:.4f} %",
                raw >= RAW_GATE_PERCENT,
            ),
            Check("after repair", f"{repaired:.4f} %", open_count == 0),
            Check("sum of records", f"{sums[0]:,} nano", True),
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

    @cached_property
    def _falsified(self) -> int:
        """Falsified receipts that were written: of calls that ended."""
        return sum(1 for outcome in self.load.outcomes if outcome.is_falsified and self._differs(outcome))

    def _differs(self, outcome: Outcome) -> bool:
        row = self.records.get(outcome.request_id)
        return row is not None and row[2] != row[3]

    def _seen_by_callers(self) -> tuple[int, int]:
        missing = wrong = 0
        for outcome in self.load.outcomes:
            if not outcome.request_id:
                continue
            row = self.records.get(outcome.request_id)
            if row is None or row[0] != self.tenants[outcome.tenant]["organization_id"]:
                missing += 1
            elif outcome.tokens is not None and (row[1] != "completed" or row[2] != outcome.tokens):
                wrong += 1
        return missing, wrong

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        rates, load = self.books["rates"], self.load
        yield "# The drill"
        yield ""
        yield "`make drill`: the whole product under load while its parts are killed. Made by the command, not by hand."
        yield ""
        yield (
            f"{load.served:,} calls of {len(self.tenants)} tenants, {load.hang_ups:.0%} of the callers hang up;"
            f" {self.books['records']:,} records, {self.books['receipts']:,} receipts,"
            f" {self.books['adjustments']:,} adjustments."
        )
        yield ""
        yield "| question | answer | |"
        yield "| --- | --- | --- |"
        for check in self.checks:
            yield f"| {check.what} | {check.found} | {'good' if check.is_good else '**bad**'} |"
        yield ""
        yield "Strictly, without leaving out what a kill cut or a receipt lied about, the raw rate is"
        yield f"{100 * rates['equal'] / max(1, rates['total']):.4f} % of {rates['total']:,} calls:"
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
            f"Time: {spans}; {rate:,.0f} calls/s with everything on {os.cpu_count()} cores that others use too (load"
            f" average {os.getloadavg()[0]:.1f}); Python {platform.python_version()}."
        )


def _listed(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{name.strip()} {count:,}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))
