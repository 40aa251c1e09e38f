"""Engines behind real gRPC on free ports: scripted, or stepped by the test; in this process, or in one of their own.

The conftest.py of a folder that wants the fixtures imports them from here.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from inference_grpc.client import EngineClient, EngineStream, Receipt
from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import BackendInfo, StepRows
from inference_grpc.core.request import ChatPrompt, Message, Request
from inference_grpc.events import Event, Failed, Finished, TextDelta, Usage
from inference_grpc.server.process import EngineServer, load_backend

ROOT = Path(__file__).resolve().parents[2]
# A machine may stand still for many seconds: waiting that long costs nothing where it does not.
PATIENCE_S = 120.0


@dataclass
class ManualPrepared:
    request: Request
    prompt_tokens: int = 3


@dataclass
class ManualBackend:
    """A backend that does nothing by itself: the test makes each step and sees each order."""

    submitted: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    on_step: Callable[[StepRows], None] = lambda rows: None
    on_fault: Callable[[], None] = lambda: None
    prepare_error: Exception | None = None

    def start(self, on_step: Callable[[StepRows], None], on_fault: Callable[[], None] = lambda: None) -> None:
        self.on_step, self.on_fault = on_step, on_fault

    def prepare(self, request: Request) -> ManualPrepared:
        if self.prepare_error is not None:
            raise self.prepare_error
        return ManualPrepared(request)

    def submit(self, key: int, prepared: Any) -> None:
        self.submitted.append(key)

    def cancel(self, key: int) -> None:
        self.cancelled.append(key)
        self.on_step([(key, Finished(Usage(3, 0, 0), cancelled=True))])

    def count_tokens(self, prompt: ChatPrompt | str) -> int:
        return 7

    def info(self) -> BackendInfo:
        return BackendInfo(model="manual", context_tokens=100, max_sequences=4, pages_total=10, pages_free=4)

    def close(self) -> None:
        self.on_step([(key, Failed("engine_shutdown", "The engine went down.")) for key in self.submitted])


@dataclass
class Rig:
    """A server in this process and a client of it."""

    server: EngineServer
    client: EngineClient
    backend: Any

    def submit(self, prompt: str | ChatPrompt, **fields: Any) -> EngineStream:
        return self.client.submit(request_of(prompt, **fields))

    async def run(self, prompt: str | ChatPrompt, **fields: Any) -> list[Event]:
        return await all_events(self.submit(prompt, **fields))

    async def receipts(self, count: int) -> list[Receipt]:
        async with asyncio.timeout(PATIENCE_S):
            while len(receipts := (await self.client.list_receipts()).receipts) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return receipts


class Start(Protocol):
    async def __call__(self, backend: Any = None, client: dict[str, Any] | None = None, **config: Any) -> Rig: ...


@dataclass
class EngineProcess:
    process: subprocess.Popen[str]
    address: str
    engine_id: str


def request_of(prompt: str | ChatPrompt, **fields: Any) -> Request:
    if isinstance(prompt, str):
        prompt = ChatPrompt([Message("user", prompt)])
    return Request(str(uuid.uuid4()), prompt, tenant=fields.pop("tenant", "7"), **fields)


async def all_events(stream: EngineStream) -> list[Event]:
    async with asyncio.timeout(PATIENCE_S):
        return [event async for event in stream]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def until(holds: Callable[[], Any]) -> None:
    """Yield to the loop until something holds; how long that takes is not what a test is about."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for knows no event
            await asyncio.sleep(0.002)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(kind="scripted", model="scripted", listen="127.0.0.1:0", journal_dir=tmp_path / "journal")


@pytest.fixture
async def start(config: EngineConfig) -> AsyncIterator[Start]:
    """`await start(backend=..., client={...}, **config fields)`; everything is closed at the end."""
    async with AsyncExitStack() as stack:

        async def start_rig(backend: Any = None, client: dict[str, Any] | None = None, **fields: Any) -> Rig:
            load = load_backend if backend is None else lambda config: backend
            server = await stack.enter_async_context(EngineServer(replace(config, **fields), load))
            engine_client = await stack.enter_async_context(
                EngineClient(server.address, **{"timeout_s": PATIENCE_S, **(client or {})})
            )
            await engine_client.connect(PATIENCE_S)
            return Rig(server, engine_client, backend)

        yield start_rig


@pytest.fixture
async def rig(start: Start) -> Rig:
    return await start()


@pytest.fixture
async def manual(start: Start) -> Rig:
    return await start(backend=ManualBackend())


@pytest.fixture
def start_process(tmp_path: Path) -> Iterator[Callable[..., EngineProcess]]:
    """`start_process("--flag", "value")` runs the scripted engine as its own process, on the same journal each time."""
    processes: list[subprocess.Popen[str]] = []

    def start_engine(*flags: str) -> EngineProcess:
        command = [sys.executable, "-m", "inference_grpc.server", "--engine", "scripted", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--journal", str(tmp_path / "journal"), *flags],
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning"},
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        word, address, engine_id = process.stdout.readline().split()
        assert word == "READY"
        return EngineProcess(process, address.removeprefix("grpc="), engine_id.removeprefix("engine_id="))

    yield start_engine
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
