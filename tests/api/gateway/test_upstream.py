"""An OpenAI-compatible upstream, played by a small server, as a deployment."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from api.backends.openai_http import OpenAiBackend, _Frames
from api.backends.stream import EventStream
from api.protocols.request import GenerationRequest, Message, Tool, ToolChoice
from inference_grpc.events import ChoiceFinished, Event, Failed, Finished, Started, TextDelta, ToolCallArguments, Usage

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


class Upstream:
    """What it received, and what it is to answer."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.frames: list[Any] = []
        self.status = 200
        self.error: Any = None
        self.pace_s = 0.0
        self.cut_at: int | None = None
        self.left = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return web.json_response(self.error, status=self.status)
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        try:
            for index, frame in enumerate(self.frames):
                if index == self.cut_at:
                    assert request.transport is not None
                    request.transport.abort()
                    return answer
                text = frame if isinstance(frame, str) else json.dumps(frame)
                await answer.write(f"data: {text}\n\n".encode())
                await asyncio.sleep(self.pace_s)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return answer


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    fake = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.handle)
    app.router.add_post("/v1/completions", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def backend(upstream: Upstream) -> AsyncIterator[OpenAiBackend]:
    backend = OpenAiBackend(upstream.url, "their-model", "secret-of-upstream")
    yield backend
    await backend.close()


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    if text is not None:
        delta["content"] = text
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


def submit(backend: OpenAiBackend, **fields: Any) -> EventStream:
    fields = {"messages": [Message("user", "hello there")], **fields}
    request = GenerationRequest(model="ours", stream=True, **fields)
    return backend.submit(request, request_id=uuid.uuid4(), tenant="1", max_tokens=20, deadline_unix_ms=0)


async def read(stream: EventStream) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(60):
        while taken := await stream.next():
            events += taken
    return events


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_frames_are_cut_wherever_the_pieces_are(size: int, end: bytes) -> None:
    lines = [
        b": comment",
        b"",
        b"data: one",
        b"",
        b"event: x",
        b"data: two",
        b"data:three",
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    stream = end.join(lines)
    frames = _Frames()
    found = [data for at in range(0, len(stream), size) for data in frames.feed(stream[at : at + size])]
    assert found == [b"one", b"two\nthree", b"[DONE]"]


async def test_usage_is_asked_for_and_becomes_the_record(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [chunk(role="assistant"), chunk("Hello"), chunk(" you"), chunk(finish="stop"),
                       {"choices": [], "usage": USAGE}, "[DONE]"]  # fmt: skip
    stream = submit(backend)
    events = await read(stream)
    assert upstream.bodies[0]["model"] == "their-model"
    assert upstream.bodies[0]["stream_options"] == {"include_usage": True}
    assert upstream.headers[0]["Authorization"] == "Bearer secret-of-upstream"
    assert isinstance(events[0], Started)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello you"
    assert events[-2] == ChoiceFinished("eos")
    assert events[-1] == Finished(Usage(11, 4, 3, 0))
    assert not stream.is_estimated


async def test_the_upstreams_fingerprint_is_passed_on(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [{**chunk("x"), "system_fingerprint": "fp_up"}, chunk(finish="stop"), "[DONE]"]
    events = await read(submit(backend))
    assert isinstance(events[0], Started)
    assert events[0].fingerprint == "fp_up"


@pytest.mark.parametrize(
    "said",
    [
        {"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5}},
        {"prompt_tokens_details": {"cached_tokens": 4, "cache_creation_tokens": 5}},
        {"prompt_tokens_details": {"cached_tokens": 4}, "cache_creation_input_tokens": 5},
        # More than the prompt has left cannot be.
        {"prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 50}},
    ],
)
async def test_tokens_written_to_the_upstreams_cache_are_counted(
    upstream: Upstream, backend: OpenAiBackend, said: dict[str, Any]
) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 3, **said}
    upstream.frames = [chunk("Hi"), chunk(finish="stop"), {"choices": [], "usage": usage}, "[DONE]"]
    counts = (await read(submit(backend)))[-1].usage
    cached = said["prompt_tokens_details"]["cached_tokens"]
    assert (counts.prompt_tokens, counts.cached_tokens, counts.cache_write_tokens) == (11, cached, 5)


async def test_without_usage_the_deltas_are_counted_and_marked(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [chunk("a"), chunk("b"), chunk(finish="length"), "[DONE]"]
    stream = submit(backend)
    events = await read(stream)
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.completion_tokens == 2
    assert events[-1].usage.prompt_tokens > 0
    assert stream.is_estimated


async def test_an_upstream_that_drops_the_connection_fails_with_what_it_sent(
    upstream: Upstream, backend: OpenAiBackend
) -> None:
    upstream.frames = [chunk(f"w{i} ") for i in range(30)]
    upstream.cut_at, upstream.pace_s = 20, 0.005
    events = await read(submit(backend))
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "engine_unavailable"
    assert events[-1].usage.completion_tokens == 20


async def test_a_stream_that_ends_early_without_a_word_is_a_failure(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [chunk("a")]
    assert isinstance((await read(submit(backend)))[-1], Failed)


async def test_an_error_inside_a_200_is_a_failure_without_output(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [{"error": {"message": "out of memory"}}]
    last = (await read(submit(backend)))[-1]
    assert isinstance(last, Failed)
    assert (last.code, last.usage.completion_tokens) == ("upstream_error", 0)


@pytest.mark.parametrize("frame", ["not json", [1], {"choices": [5]}, {"choices": [{"delta": {"tool_calls": "x"}}]}])
async def test_an_answer_of_another_shape_ends_the_stream(
    upstream: Upstream, backend: OpenAiBackend, frame: Any
) -> None:
    upstream.frames = [frame]
    last = (await read(submit(backend)))[-1]
    assert isinstance(last, Failed)
    assert last.code == "upstream_error"


VLLM_TOO_LONG = (
    "This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens. "
    "Please reduce the length of the input messages."
)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"error": {"message": "no", "code": "context_length_exceeded"}}, "context_length_exceeded"),
        (400, {"error": {"message": VLLM_TOO_LONG, "type": "BadRequestError", "code": 400}}, "context_length_exceeded"),
        (400, {"error": {"message": "no", "type": "exceed_context_size_error"}}, "context_length_exceeded"),
        (400, {"error": {"message": "bad field", "param": "top_k"}}, "invalid_request"),
        (401, {"error": {"message": "your key secret-of-upstream is wrong"}}, "upstream_error"),
        (404, {"error": {"message": "no such model"}}, "model_not_served"),
        (429, {"error": {"message": "slow down"}}, "engine_overloaded"),
        (500, "oops", "upstream_error"),
    ],
)
async def test_a_refusal_is_put_down_to_whom_it_belongs(
    upstream: Upstream, backend: OpenAiBackend, status: int, error: Any, code: str
) -> None:
    upstream.status, upstream.error = status, error
    last = (await read(submit(backend)))[-1]
    assert isinstance(last, Failed)
    assert last.code == code
    assert "secret-of-upstream" not in last.message


async def test_nobody_listening_is_unavailable() -> None:
    backend = OpenAiBackend("http://127.0.0.1:1/v1", "m", "")
    try:
        last = (await read(submit(backend)))[-1]
        assert isinstance(last, Failed)
        assert last.code == "engine_unavailable"
    finally:
        await backend.close()


async def test_a_cancel_closes_the_upstream_connection(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [chunk(f"w{i} ") for i in range(500)]
    upstream.pace_s = 0.01
    stream = submit(backend)
    while stream.usage.completion_tokens < 3:
        await stream.next()
    stream.cancel()
    events = await read(stream)
    assert isinstance(events[-1], Finished)
    assert events[-1].cancelled
    assert events[-1].usage.completion_tokens >= 3
    async with asyncio.timeout(60):
        await upstream.left.wait()


async def test_tool_calls_and_their_fragments(upstream: Upstream, backend: OpenAiBackend) -> None:
    start = {"index": 0, "id": "call_x", "function": {"name": "f", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1}")]
    upstream.frames = [
        *(chunk(tool_calls=[call]) for call in (start, *more)), chunk(finish="tool_calls"), "[DONE]",
    ]  # fmt: skip
    events = await read(submit(backend, tools=[Tool("f", "", {"type": "object"})]))
    assert upstream.bodies[0]["tools"][0]["function"]["name"] == "f"
    arguments = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
    assert json.loads(arguments) == {"a": 1}
    assert ChoiceFinished("tool_calls") in events


async def test_a_choice_of_some_tools_offers_those_only(upstream: Upstream, backend: OpenAiBackend) -> None:
    upstream.frames = [chunk("x"), chunk(finish="stop"), "[DONE]"]
    tools = [Tool(name, "", {"type": "object"}) for name in ("f", "g", "h")]
    for mode in ("allowed", "required"):
        await read(submit(backend, tools=tools, tool_choice=ToolChoice(mode, ["f", "h"])))
    for body, mode in zip(upstream.bodies, ("auto", "required"), strict=True):
        assert [tool["function"]["name"] for tool in body["tools"]] == ["f", "h"]
        assert body["tool_choice"] == mode
