"""Runs requests through a backend as the server does, and gives their events back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from inference_grpc.core.backend import StepRows
from inference_grpc.core.request import ChatPrompt, Message, Request, SamplingParams
from inference_grpc.engine.backend import TorchBackend
from inference_grpc.events import ChoiceFinished, Event, Failed, Finished, TextDelta, Usage

TIMEOUT_S = 120.0
PATIENCE = "no final event in time"


class Client:
    """Starts the backend. `on_event` sees every event as it comes, on the engine's thread."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend
        self.on_event: Callable[[int, Event], None] = lambda key, event: None
        self._changed = threading.Condition()
        self._events: dict[int, list[Event]] = {}
        self._next_key = 0
        backend.start(self._on_step)

    def submit(self, request: Request) -> int:
        prepared = self.backend.prepare(request)
        self._next_key += 1
        self._events[self._next_key] = []
        self.backend.submit(self._next_key, prepared)
        return self._next_key

    def wait(self, key: int, until: Callable[[list[Event]], bool] | None = None) -> list[Event]:
        """All events of a request up to its last, or as soon as `until` holds."""
        with self._changed:
            seen = self._events[key]
            is_ready = self._changed.wait_for(lambda: _is_over(seen) or (until and until(seen)), TIMEOUT_S)
            assert is_ready, PATIENCE
            return list(seen)

    def run(self, *requests: Request) -> list[list[Event]]:
        """Submits all at once, as one batch as far as they fit."""
        keys = [self.submit(request) for request in requests]
        return [self.wait(key) for key in keys]

    def _on_step(self, rows: StepRows) -> None:
        with self._changed:
            for key, event in rows:
                assert not _is_over(self._events[key]), "an event after the last"
                self._events[key].append(event)
                self.on_event(key, event)
            self._changed.notify_all()


def _is_over(events: list[Event]) -> bool:
    return bool(events) and isinstance(events[-1], Finished | Failed)


def chat(text: str, *, temperature: float = 0.0, sampling: dict[str, Any] | None = None, **fields: Any) -> Request:
    return Request(
        request_id="r",
        prompt=ChatPrompt([Message("user", text)]),
        sampling=SamplingParams(**{"temperature": temperature, **(sampling or {})}),
        **fields,
    )


def complete(prompt: str | list[int], *, sampling: dict[str, Any] | None = None, **fields: Any) -> Request:
    return Request("r", prompt, sampling=SamplingParams(**{"temperature": 0.0, **(sampling or {})}), **fields)


def text_of(events: list[Event], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.choice == choice)


def reasons_of(events: list[Event]) -> dict[int, str]:
    return {event.choice: event.reason for event in events if isinstance(event, ChoiceFinished)}


def usage_of(events: list[Event]) -> Usage:
    last = events[-1]
    assert isinstance(last, Finished | Failed)
    return last.usage
