"""The drill in small: each part of the product is killed once under load, and every account agrees at the end."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.drill.__main__ import parser, run
from benchmarks.drill.report import Report


def options(**changed: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(parser().parse_args([])), **changed})


def test_no_call_and_no_cent_is_lost_in_a_small_drill(tmp_path: Path) -> None:
    report: Report = run(options(calls=2000, rounds=1, outage=0, falsified=3), tmp_path)
    bad = [check for check in report.checks if not check.is_good]
    # The lies alone are more than one call in ten thousand, and nothing else is.
    assert [check for check in bad if not check.what.startswith("raw")] == [], report.text()
    rates = report.books["rates"]
    assert rates["total"] - rates["unfinished"] - rates["equal"] == rates["differ"] == 3, report.text()
    assert len(report.faults) == 5
