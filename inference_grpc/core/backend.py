"""What the server needs of an engine: the one face that the torch engine and the scripted engine share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from inference_grpc.core.request import ChatPrompt, Request
from inference_grpc.events import Event

# One engine step: (key, event) of all sequences, in order. A final event (`Finished`, `Failed`) ends its key.
StepRows = list[tuple[int, Event]]


@dataclass(slots=True)
class BackendInfo:
    """What GetInfo answers, less what the server itself knows (engine_id, version)."""

    model: str
    context_tokens: int
    max_sequences: int
    page_tokens: int = 0
    pages_total: int = 0
    pages_free: int = 0
    # Of a cache in two stages, whose other pages are in FP8: pages in three bits, and what of either sequences hold.
    three_bit_pages_total: int = 0
    three_bit_pages_free: int = 0
    pages_held: int = 0
    three_bit_pages_held: int = 0
    running: int = 0
    waiting: int = 0
    precision: str = ""
    draft_head: str = "none"
    device: str = "cpu"
    weights_sha256: str = ""
    features: list[str] = field(default_factory=list)
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    runtime: str = ""
    saturated: dict[str, int] = field(default_factory=dict)  # values beyond the range of a narrow format, by kind
    # The same by their place among the drafts of one sequence in one step.
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)


class Prepared(Protocol):
    """A checked and tokenized request, ready to be queued."""

    @property
    def request(self) -> Request: ...

    @property
    def prompt_tokens(self) -> int: ...


class Backend(Protocol):
    def start(self, on_step: Callable[[StepRows], None], on_fault: Callable[[], None] = lambda: None) -> None:
        """Begin to run. `on_step` is called once a step, from the engine's own thread; it must not block.

        `on_fault` is called once when the device has failed: every open key has had its `Failed` by then, nothing is
        taken any more, and only a new process can help.
        """

    def prepare(self, request: Request) -> Prepared:
        """Template, tokenize, check, compile constraints. CPU work without shared state: call it in a worker thread.

        Raises `errors.EngineError` (PromptTooLong, InvalidRequest, UnsupportedSchema, …).
        """

    def submit(self, key: int, prepared: Prepared) -> None:
        """Queue it under `key` (the server's, unique among open ones). Raises `errors.QueueFull`; thread-safe."""

    def cancel(self, key: int) -> None:
        """Stop within one step: the key ends with `Finished(cancelled=True)`. Unknown keys are ignored; thread-safe."""

    def count_tokens(self, prompt: ChatPrompt | str) -> int: ...

    def info(self) -> BackendInfo: ...

    def close(self) -> None:
        """Stop the thread; open keys end with `Failed(code="engine_shutdown")`."""
