"""What waits to be sent on one session: the rows of one or more engine steps, in columns."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc

from inference_grpc.events import (
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.wire import logprobs_to_proto, reason_to_proto, usage_to_proto

PENDING_BYTES = 32 << 20  # of all that waits on one session
STEP_BYTES = 1 << 20  # of one message, about; gRPC clients take 4 MiB unless told otherwise
ROW_BYTES = 32  # what a row counts on top of its text
LOGPROB_BYTES = 40  # what one alternative of a logprob counts


class _Columns:
    """The rows of one message."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.kinds: list[pb.DeltaKind] = []
        self.counts: list[int] = []
        self.texts: list[str] = []
        self.choices: list[int] = []
        self.details: list[pb.Detail] = []
        self.has_choices = False
        self.joinable: dict[int, int] = {}  # handle -> its last row, if that is a plain fragment
        self.bytes = 0

    def append(self, handle: int, kind: pb.DeltaKind, completion_tokens: int, text: str, choice: int) -> None:
        self.handles.append(handle)
        self.kinds.append(kind)
        self.counts.append(completion_tokens)
        self.texts.append(text)
        self.choices.append(choice)
        self.has_choices = self.has_choices or choice != 0

    def to_proto(self) -> pb.SessionStep:
        return pb.SessionStep(
            handles=self.handles,
            kinds=self.kinds,
            completion_tokens=self.counts,
            texts=self.texts,
            choices=self.choices if self.has_choices else (),
            details=self.details,
        )


class Outbox:
    """Rows of a session. While the reader is behind, the texts of consecutive rows of one request are joined.

    Only the event loop uses it. When more than `PENDING_BYTES` wait, the session is broken off: its reader is stuck.
    """

    def __init__(self) -> None:
        self.open_keys: dict[int, int] = {}  # handle -> key of the dispatcher
        self.is_input_closed = False  # no further request will come; the session ends once the open ones have
        self.failure: Failed | None = None  # the last failure that was added
        self.broken: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self._ready = asyncio.Event()
        self._messages: deque[_Columns] = deque()
        self._bytes = 0

    @property
    def is_finished(self) -> bool:
        return self.is_input_closed and not self.open_keys and not self._messages

    def add(self, handle: int, event: Event, completion_tokens: int) -> None:
        """`completion_tokens` is the cumulative count of the request, this event in it. `wake` after the last row."""
        if isinstance(event, TextDelta):
            if event.logprobs is None:
                self._add_fragment(handle, pb.TEXT, event.text, completion_tokens, event.choice)
            else:
                size = sum(LOGPROB_BYTES * (1 + len(token.top)) for token in event.logprobs)
                detail = pb.Detail(logprobs=logprobs_to_proto(event.logprobs))
                self._add_row(handle, pb.TEXT, completion_tokens, event.text, event.choice, detail, size)
        elif isinstance(event, ReasoningDelta):
            self._add_fragment(handle, pb.REASONING, event.text, completion_tokens, event.choice)
        elif isinstance(event, ToolCallArguments):
            self._add_fragment(handle, pb.TOOL_CALL_ARGUMENTS, event.text, completion_tokens, event.choice)
        else:
            kind, choice, detail = _detail(event)
            self._add_row(handle, kind, completion_tokens, "", choice, detail)
            if isinstance(event, Failed):
                self.failure = event
        if self._bytes > PENDING_BYTES:
            self.break_off(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"The session is not read: {self._bytes} bytes wait and {PENDING_BYTES} may.",
            )

    def wake(self) -> None:
        self._ready.set()

    def close_input(self) -> None:
        self.is_input_closed = True
        self.wake()

    def break_off(self, status: grpc.StatusCode, reason: str) -> None:
        """End the session with a status; what waits is not sent."""
        if not self.broken.done():
            self.broken.set_result((status, reason))

    async def wait(self) -> None:
        await self._ready.wait()
        self._ready.clear()

    def take(self) -> pb.SessionStep | None:
        """The next message: all rows that wait, unless they are too many for one. None when there are none."""
        if not self._messages:
            return None
        columns = self._messages.popleft()
        self._bytes -= columns.bytes
        return columns.to_proto()

    def _columns(self, size: int) -> _Columns:
        """Where the next row goes, which has `size` bytes."""
        if not self._messages or self._messages[-1].bytes > STEP_BYTES:
            self._messages.append(_Columns())
        columns = self._messages[-1]
        columns.bytes += size
        self._bytes += size
        return columns

    def _add_fragment(self, handle: int, kind: pb.DeltaKind, text: str, completion_tokens: int, choice: int) -> None:
        size = len(text) if text.isascii() else len(text.encode())
        columns = self._columns(ROW_BYTES + size)
        row = columns.joinable.get(handle)
        if row is not None and columns.kinds[row] == kind and columns.choices[row] == choice:
            columns.texts[row] += text
            columns.counts[row] = completion_tokens
            return
        columns.joinable[handle] = len(columns.handles)
        columns.append(handle, kind, completion_tokens, text, choice)

    def _add_row(
        self,
        handle: int,
        kind: pb.DeltaKind,
        completion_tokens: int,
        text: str,
        choice: int,
        detail: pb.Detail,
        size: int = 0,
    ) -> None:
        columns = self._columns(ROW_BYTES + size)
        columns.joinable.pop(handle, None)
        detail.row = len(columns.handles)
        columns.details.append(detail)
        columns.append(handle, kind, completion_tokens, text, choice)


def _detail(event: Started | ToolCallStart | ChoiceFinished | Finished | Failed) -> tuple[pb.DeltaKind, int, pb.Detail]:
    """(kind, choice, detail) of an event that is not a fragment."""
    if isinstance(event, Started):
        started = pb.Started(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)
        return pb.STARTED, 0, pb.Detail(started=started)
    if isinstance(event, ToolCallStart):
        call = pb.ToolCallStart(index=event.index, id=event.id, name=event.name)
        return pb.TOOL_CALL_START, event.choice, pb.Detail(tool_call=call)
    if isinstance(event, ChoiceFinished):
        end = pb.ChoiceFinished(reason=reason_to_proto(event.reason), matched_stop=event.matched_stop or "")
        return pb.CHOICE_FINISHED, event.choice, pb.Detail(choice_finished=end)
    if isinstance(event, Finished):
        finished = pb.Finished(usage=usage_to_proto(event.usage), cancelled=event.cancelled)
        return pb.FINISHED, 0, pb.Detail(finished=finished)
    failed = pb.Failed(code=event.code, message=event.message, usage=usage_to_proto(event.usage), fields=event.fields)
    return pb.FAILED, 0, pb.Detail(failed=failed)
