from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.quotas import snapshot
from tests.api.live.service import MODEL, Account, Engine, Web, database_of_its_own, make_account, make_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("live")


@pytest.fixture(scope="package")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gateway-tests-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="package")
def live_database(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), database_of_its_own(f"test_live_{os.getpid()}"):
        snapshot.client().flushdb()
        yield


@pytest.fixture(scope="package")
def engine(folder: Path) -> Iterator[Engine]:
    process = Engine(folder)
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="package")
def served_model(live_database: None, engine: Engine) -> None:
    """Made once: gateways would open a new session for a deployment that is made anew, in the middle of calls."""
    make_model(MODEL, engine.address)


@pytest.fixture(scope="package")
def webs(served_model: None, folder: Path) -> Iterator[Callable[[str], Web]]:
    """The shared server of each kind, started when it is first wanted."""
    running: dict[str, Web] = {}

    def get(kind: str) -> Web:
        if kind not in running:
            running[kind] = Web(folder, kind, STREAM_KEEPALIVE_S="1", REQUEST_BODY_LIMIT_BYTES="200000")
            running[kind].start()
        return running[kind]

    yield get
    for web in running.values():
        web.stop()


@pytest.fixture
def web(webs: Callable[[str], Web]) -> Web:
    return webs("granian")


@pytest.fixture(params=["granian", "uvicorn"])
def each_web(request: pytest.FixtureRequest, webs: Callable[[str], Web]) -> Web:
    """For what depends on the server: streaming, disconnects, shutdown."""
    return webs(request.param)


@pytest.fixture
def account(web: Web) -> Account:
    return make_account(web)


@pytest.fixture
def each_account(each_web: Web) -> Account:
    return make_account(each_web)


@pytest.fixture
def own_web(served_model: None, folder: Path) -> Iterator[Callable[..., Web]]:
    """Servers of one test, for what would disturb the others."""
    started: list[Web] = []

    def start(kind: str = "granian", **environment: str) -> Web:
        web = Web(folder, kind, **environment)
        web.start()
        started.append(web)
        return web

    yield start
    for web in started:
        web.stop()
