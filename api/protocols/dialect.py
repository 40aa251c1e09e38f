"""The face that every dialect module shows to the gateway.

A dialect is a module or a package (`chat`, …) with these names at its top. It is pure: bytes and events in, bytes
out; no Django, no network, no clock. The consumer is the only caller:

    parsed = dialect.parse(body)                                  # BadRequest -> 400 in this dialect's envelope
    writer = dialect.make_writer(parsed, request_id=…, model=…, created=…)
    stream:  send(writer.start(started)); send(writer.feed(event)) …; after a failure send(writer.fail(code, message))
    plain:   writer.start(started); writer.feed(event) …; send(writer.result())

Between `start` and the end the consumer may send `writer.keepalive()` at any frame border. Consecutive text or
reasoning deltas of one choice may reach `feed` joined into one event. `feed(Finished)` returns the closing frames,
`[DONE]` included where the dialect has one. `feed` never sees `Failed`: the consumer calls `fail` instead, and nothing
after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar
from uuid import UUID

from api.protocols.request import GenerationRequest
from inference_grpc.events import ChoiceFinished, Delta, Finished, Started

ErrorStyle = Literal["openai", "anthropic"]


class Parsed(Protocol):
    """What `parse` returns: any object with the requests to run, and whatever the writer must echo.

    `requests` has one element, but for legacy Completions with several prompts: there it has one per prompt, all with
    the same `n`, and the writer sees the events of prompt i with `choice = i * n + choice`, one `Started` and one
    `Finished` with the sums.
    """

    @property
    def requests(self) -> Sequence[GenerationRequest]: ...


class Writer(Protocol):
    """One call's answer. A method that returns frames returns whole ones, or `b""` when there is nothing to say.

    A plain (non-stream) call is fed the same events; then the returned bytes are ignored (return `b""` and build no
    frame) and `result` is sent.
    """

    def start(self, event: Started) -> bytes: ...

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes: ...

    def fail(self, code: str, message: str) -> bytes:
        """The dialect's error event after the first byte. `code` is a key of `api.errors.TABLE`. Nothing follows it."""

    def keepalive(self) -> bytes: ...

    def result(self) -> bytes:
        """The plain JSON body, from all events fed."""


P = TypeVar("P")


class Dialect(Protocol[P]):
    """A module that serves the generation paths of one API."""

    # Word on the usage record: "chat", "completions", "responses", "messages".
    NAME: str
    # Exact paths of POST requests.
    PATHS: frozenset[str]
    # Which column of `api.errors.TABLE` gives status and type of an error.
    ERROR_STYLE: ErrorStyle

    def parse(self, body: bytes) -> P:
        """Raises BadRequest."""

    def make_writer(self, parsed: P, *, request_id: UUID, model: str, created: int) -> Writer:
        """`model` is the public name to echo, `created` Unix seconds. The answer's id is made from `request_id`."""

    def error_body(
        self, *, status: int, type: str, code: str | None, message: str, param: str | None, request_id: str
    ) -> bytes:
        """The JSON body of an error answer. `type` is the dialect's own word, from `api.errors.TABLE`."""


class Counter(Protocol):
    """A dialect that also counts tokens without generating (Messages)."""

    COUNT_PATHS: frozenset[str]

    def parse_count(self, body: bytes) -> GenerationRequest:
        """Raises BadRequest."""

    def count_body(self, prompt_tokens: int) -> bytes: ...
