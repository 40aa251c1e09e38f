"""Two running products: one with the scripted engine, one with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.stack import TEST_TIMEOUT_S, Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("product")
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stacks")


def run(stack: Stack) -> Iterator[Stack]:
    stack.start()
    try:
        yield stack
    finally:
        assert stack.stop() == 0


@pytest.fixture(scope="session")
def scripted_stack(state_folder: Path) -> Iterator[Stack]:
    yield from run(Stack(state_folder / "scripted", extra_environment={"ENGINE_KIND": "scripted"}))


@pytest.fixture(scope="session")
def real_stack(state_folder: Path) -> Iterator[Stack]:
    yield from run(Stack(state_folder / "real"))
