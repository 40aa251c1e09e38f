"""Start the server as its users do, from a command line, and stream from it; on any device, without pytest's help."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_grpc.client import EngineClient
from inference_grpc.core.request import ChatPrompt, Message, Request, SamplingParams
from inference_grpc.events import Failed, Finished, TextDelta
from inference_grpc.model.tiny import write_tiny
from inference_grpc.tools.__main__ import main as run_tool

ROOT = Path(__file__).parents[2]
TOKENS = 24
# Each way to name a model on the command line, by the folder that `write_models` fills.
WAYS = {
    "tiny-random": lambda folder: ["--tiny-random", "qwen3_5"],
    "folder": lambda folder: ["--model", str(folder / "hybrid")],
    "gguf": lambda folder: ["--model", str(folder / "hybrid.gguf")],
    "folder nvfp4": lambda folder: ["--model", str(folder / "nvfp4")],
    "gguf nvfp4": lambda folder: ["--model", str(folder / "nvfp4.gguf")],
    "folder as fp8": lambda folder: ["--model", str(folder / "hybrid"), "--precision", "fp8"],
}


@dataclass(frozen=True, slots=True)
class Streamed:
    """What one request brought."""

    text: str
    deltas: int
    prompt_tokens: int
    completion_tokens: int


def write_models(folder: Path) -> Path:
    """The tiny hybrid as a folder and as a file, as it is and quantized by the tools."""
    source = write_tiny(folder / "hybrid")
    for arguments in (
        ["quantize", str(source), str(folder / "nvfp4"), "--recipe", "nvfp4"],
        ["export-gguf", str(source), str(folder / "hybrid.gguf")],
        ["export-gguf", str(folder / "nvfp4"), str(folder / "nvfp4.gguf")],
    ):
        if run_tool(arguments):
            raise RuntimeError(f"{arguments[0]} failed")
    return folder


@contextlib.contextmanager
def started(arguments: Sequence[str], journal: Path) -> Iterator[str]:
    """The address of a server that runs until the end of the block, where it drains and ends with 0."""
    command = [sys.executable, "-m", "inference_grpc.server", "--listen", "127.0.0.1:0", "--journal", str(journal)]
    log = journal.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, env=_without_engine(), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        try:
            words = process.stdout.readline().split()
            if not words or words[0] != "READY":
                process.wait(timeout=120)
                raise RuntimeError(f"the server did not start: {_said(log)}")
            yield words[1].removeprefix("grpc=")
            process.send_signal(signal.SIGTERM)
            if process.wait(timeout=120):
                raise RuntimeError(f"the server ended with {process.returncode}: {_said(log)}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def stream_twice(address: str) -> tuple[Streamed, Streamed]:
    """A chat, and beside three others of its kind the same again."""
    return asyncio.run(_stream_twice(address))


async def _stream_twice(address: str) -> tuple[Streamed, Streamed]:
    async with EngineClient(address, timeout_s=120.0) as engine:
        await engine.connect(120.0)
        first = await _stream(engine, "hello")
        again = await asyncio.gather(*(_stream(engine, text) for text in ("hello", "who", "where", "when is it")))
        return first, again[0]


async def _stream(engine: EngineClient, text: str) -> Streamed:
    request = Request(
        str(uuid.uuid4()),
        ChatPrompt([Message("user", text)]),
        SamplingParams(temperature=0.0),
        max_tokens=TOKENS,
        ignore_eos=True,
    )
    parts: list[str] = []
    async with engine.submit(request) as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                parts.append(event.text)
            elif isinstance(event, Failed):
                raise RuntimeError(f"{event.code}: {event.message}")
            elif isinstance(event, Finished):
                usage = event.usage
                return Streamed("".join(parts), len(parts), usage.prompt_tokens, usage.completion_tokens)
    raise RuntimeError("the stream ended without its last event")


def _said(log: Path) -> str:
    """The end of a log, without frames of compiled code, which would leave no room for the cause."""
    return "\n".join(line for line in log.read_text().splitlines() if not line.startswith("frame #"))[-8000:]


def _without_engine() -> dict[str, str]:
    """The environment less what would configure the engine beside the flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")}
