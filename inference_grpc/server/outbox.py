"""What waits to be sent on one session: the rows of one or more engine steps, in columns."""

from __future__ import annotations

import asyncio

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
from inference_grpc.wire import MESSAGE_BYTES, logprobs_to_proto, reason_to_proto, usage_to_proto

PENDING_BYTES = MESSAGE_BYTES // 2  # so that all that waits still fits into one message
ROW_BYTES = 32  # what a row counts on top of its text
LOGPROB_BYTES = 40  # what one alternative of a logprob counts


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
        self._clear()

    def _clear(self) -> None:
        self._handles: list[int] = []
        self._kinds: list[pb.DeltaKind] = []
        self._counts: list[int] = []
        self._texts: list[str] = []
        self._choices: list[int] = []
        self._details: list[pb.Detail] = []
        self._has_choices = False
        self._joinable: dict[int, int] = {}  # handle -> its last row, if that is a plain fragment
        self._bytes = 0

    @property
    def is_finished(self) -> bool:
        return self.is_input_closed and not self.open_keys and not self._handles

    def add(self, handle: int, event: Event, completion_tokens: int) -> None:
        """`completion_tokens` is the cumulative count of the request, this event in it. `wake` after the last row."""
        if isinstance(event, TextDelta):
            if event.logprobs is None:
                self._add_fragment(handle, pb.TEXT, event.text, completion_tokens, event.choice)
            else:
                self._bytes += sum(LOGPROB_BYTES * (1 + len(token.top)) for token in event.logprobs)
                detail = pb.Detail(logprobs=logprobs_to_proto(event.logprobs))
                self._add_row(handle, pb.TEXT, completion_tokens, event.text, event.choice, detail)
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
        """All rows that wait, as one message; None when there are none."""
        if not self._handles:
            return None
        step = pb.SessionStep(
            handles=self._handles,
            kinds=self._kinds,
            completion_tokens=self._counts,
            texts=self._texts,
            choices=self._choices if self._has_choices else (),
            details=self._details,
        )
        self._clear()
        return step

    def _add_fragment(self, handle: int, kind: pb.DeltaKind, text: str, completion_tokens: int, choice: int) -> None:
        self._bytes += len(text) if text.isascii() else len(text.encode())
        row = self._joinable.get(handle)
        if row is not None and self._kinds[row] == kind and self._choices[row] == choice:
            self._texts[row] += text
            self._counts[row] = completion_tokens
            return
        self._joinable[handle] = len(self._handles)
        self._append(handle, kind, completion_tokens, text, choice)

    def _add_row(
        self, handle: int, kind: pb.DeltaKind, completion_tokens: int, text: str, choice: int, detail: pb.Detail
    ) -> None:
        self._joinable.pop(handle, None)
        detail.row = len(self._handles)
        self._details.append(detail)
        self._append(handle, kind, completion_tokens, text, choice)

    def _append(self, handle: int, kind: pb.DeltaKind, completion_tokens: int, text: str, choice: int) -> None:
        self._handles.append(handle)
        self._kinds.append(kind)
        self._counts.append(completion_tokens)
        self._texts.append(text)
        self._choices.append(choice)
        self._has_choices = self._has_choices or choice != 0
        self._bytes += ROW_BYTES


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
