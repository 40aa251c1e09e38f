"""The face of one running request, whatever serves it, and the buffer behind those that are not of our engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from inference_grpc.events import Event, Failed, Finished, Usage, join_fragments


class EventStream(Protocol):
    """The events of one request. It ends with exactly one `Finished` or `Failed`, also after `cancel`."""

    # The counts of all that has arrived, read or not.
    usage: Usage
    # The final event has arrived; it may still wait to be read.
    is_ended: bool
    # The counts are not what the backend said at the end, but what was seen or guessed.
    is_estimated: bool
    # The upstream's own id of the request; empty where the request goes by ours.
    upstream_id: str

    async def ready(self) -> None:
        """Wait until `next` would not."""

    async def next(self) -> list[Event]:
        """Everything that is queued, else what comes next; empty once the final event has been given."""

    def cancel(self) -> None:
        """Ask to stop. A repeat, or one after the end, does nothing."""


class BufferedStream:
    """An EventStream that a task of ours fills with `append`; the buffer's reader is the call."""

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self.usage = Usage()
        self.is_ended = False
        self.is_estimated = False
        self.upstream_id = ""
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._on_cancel = on_cancel

    def append(self, event: Event) -> None:
        """Joins fragments of one text that wait. After the final event nothing is taken any more."""
        if self.is_ended:
            return
        if not (self._events and join_fragments(self._events[-1], event)):
            self._events.append(event)
        if isinstance(event, Finished | Failed):
            self.is_ended = True
            self.usage = event.usage
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def unread(self) -> int:
        return len(self._events)

    async def ready(self) -> None:
        if not self._events and not self.is_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def next(self) -> list[Event]:
        await self.ready()
        events, self._events = self._events, []
        return events

    def cancel(self) -> None:
        if not self.is_ended:
            self._on_cancel()
