"""tests/faults.md names a test for every fault, and each test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.architecture.environment import ROOT

PAGE = (ROOT / "tests" / "faults.md").read_text()
WIRE = "api/protocols/test_wire_faults.py"
ROW = re.compile(r"^\| ([A-Z]\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# Of the lists in which the faults were collected; what is left out there is left out here.
NUMBERS = {
    "P": "1 2 4 5 6 7 9 10 11 12 14 15 16 17 19 20 21 22 24 25 26 28 29 30 32 33 35 36 37 38 39 40 42 43 44 45 47 48 50"
    " 51 53 54 55 56 57",
    "W": "1 2 3 4 6 7 8 10 11 12 14 15 16 18 19 21 22 23 24 25 27 28 29 30 32 34",
    "D": "1 2 3 4 5",
}
FAULTS = [(fault, tests) for fault, _, tests in ROW.findall(PAGE)]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_fault_has_one_row() -> None:
    expected = [f"{letter}{number}" for letter, numbers in NUMBERS.items() for number in numbers.split()]
    assert [fault for fault, _ in FAULTS] == expected


@pytest.mark.parametrize(("fault", "tests"), FAULTS)
def test_the_tests_of_a_fault_are_there(fault: str, tests: str) -> None:
    named = re.findall(r"`([^`]+)`", tests)
    assert named, f"{fault} has no test"
    for each in named:
        path, _, name = each.rpartition("::")
        assert name in names_in(path or WIRE), f"{fault}: there is no {each}"
