"""A deployment behind any OpenAI-compatible server (vLLM, SGLang, llama.cpp, a hosted one).

It is always asked for a stream with usage, whatever the caller wants, so that a call that ends early is counted too.
Where the upstream never says its counts, they are those of the deltas seen, and the stream is marked as estimated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from typing import Any
from uuid import UUID

import aiohttp
import orjson

from api.backends.stream import BufferedStream, EventStream
from api.protocols.request import Embedding, GenerationRequest, Message
from inference_grpc.errors import EngineError
from inference_grpc.events import (
    ChoiceFinished,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    TopLogprob,
    Usage,
)

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 300.0
BUFFER_EVENTS = 10_000
FRAME_LIMIT_BYTES = 16 * 1024 * 1024
BYTES_PER_TOKEN = 4  # of a guess, until the upstream says

# How OpenAI, vLLM, SGLang and llama.cpp say, in code, type or words, that a prompt does not fit.
_TOO_LONG = re.compile(
    r"context_length|exceed_context_size|(?:maximum|longer than the model's) context length|available context size",
    re.IGNORECASE,
)
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "eos", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls",
    "content_filter": "content_filter",
}  # fmt: skip


class OpenAiBackend:
    keeps_receipts = False
    embeds = True

    def __init__(self, base_url: str, model: str, secret: str) -> None:
        self._base_url = base_url.rstrip("/")
        self._model = model
        self._headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._session: aiohttp.ClientSession | None = None

    async def find_embeds(self) -> bool:
        return self.embeds

    def submit(
        self, request: GenerationRequest, *, request_id: UUID, tenant: str, max_tokens: int, deadline_unix_ms: int
    ) -> EventStream:
        is_chat = request.messages is not None
        if request.embedding is not None:
            body = _embedding_body(request.embedding, self._model)
            call: _Call = _EmbeddingCall(request, is_chat, len(body))
            path = "embeddings"
        else:
            body = _body(request, self._model, max_tokens)
            call = _Call(request, is_chat, len(body))
            path = "chat/completions" if is_chat else "completions"
        url = f"{self._base_url}/{path}"
        headers = {**self._headers, "Content-Type": "application/json", "X-Request-Id": str(request_id)}
        timeout_s = max(0.001, deadline_unix_ms / 1000 - time.time()) if deadline_unix_ms else None
        call.run(self._open_session(), url, body, headers, timeout_s)
        return call.stream

    async def count_tokens(self, request: GenerationRequest) -> int:
        raise EngineError("This model is served by an upstream that does not count tokens.")

    async def is_healthy(self) -> bool:
        try:
            async with self._open_session().get(f"{self._base_url}/models", headers=self._headers) as answer:
                return answer.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
            # The number of calls is bounded by admission, not here.
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session


class _Call:
    """One request upstream: reads its events into the stream."""

    def __init__(self, request: GenerationRequest, is_chat: bool, body_bytes: int) -> None:
        self._is_chat = is_chat
        self._has_started = False
        self._tokens = 0
        self._reasoning_tokens = 0
        self._said: Usage | None = None
        self._finished: set[int] = set()
        self._choices = request.n
        self._calls: dict[tuple[int, int], int] = {}  # (choice, upstream's index) -> ours
        self._task: asyncio.Task[None] | None = None
        self.stream = BufferedStream(self._cancel)
        self.stream.usage.prompt_tokens = body_bytes // BYTES_PER_TOKEN
        self.stream.is_estimated = True

    def run(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str], timeout_s: float | None
    ) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(session, url, body, headers, timeout_s))

    def _cancel(self) -> None:
        # Closing the connection is how an OpenAI-compatible server learns that the caller left.
        assert self._task is not None
        self._task.cancel()

    async def _run(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str], timeout_s: float | None
    ) -> None:
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    self._refused(answer.status, await answer.content.read(65_536))
                    return
                await self._read(answer)
        except asyncio.CancelledError:
            self.stream.append(Finished(self._usage(), cancelled=True))
        except TimeoutError:
            self._fail("deadline_exceeded", "The upstream did not finish in time.")
        except aiohttp.ClientConnectorError:
            self._fail("engine_unavailable", "The upstream cannot be reached.")
        except aiohttp.ClientError as error:
            self._fail("engine_unavailable", f"The upstream's answer broke off: {type(error).__name__}.")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # Its bytes are not the API's: whatever shape they have, the stream has to end.
            self._fail("upstream_error", f"The upstream's answer is not understood: {type(error).__name__}.")

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        frames = _Frames()
        async for piece in answer.content.iter_any():
            for data in frames.feed(piece):
                if self._take(data):
                    return
        self._end()

    def _take(self, data: bytes) -> bool:
        """One SSE event; True when it was the last."""
        if data == b"[DONE]":
            self._end()
            return True
        chunk = orjson.loads(data)
        if error := chunk.get("error"):
            message = error.get("message") if isinstance(error, dict) else str(error)
            self._fail("upstream_error", f"The upstream reported: {message}")
            return True
        if self.stream.unread > BUFFER_EVENTS:
            self._fail("slow_reader", f"The stream was not read: {BUFFER_EVENTS} events wait for the caller.")
            return True
        if not self._has_started:
            self._has_started = True
            fingerprint = chunk.get("system_fingerprint")
            fingerprint = fingerprint if isinstance(fingerprint, str) else ""
            self.stream.append(Started(self.stream.usage.prompt_tokens, 0, fingerprint))
        if not self.stream.upstream_id and isinstance(name := chunk.get("id"), str):
            self.stream.upstream_id = name
        if usage := chunk.get("usage"):
            self._said = _usage_of(usage)
            self.stream.is_estimated = False
        for choice in chunk.get("choices") or ():
            self._take_choice(choice)
        self.stream.usage = self._usage()
        return False

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        if self._is_chat:
            self._take_delta(index, choice.get("delta") or {}, choice.get("logprobs"))
        elif text := choice.get("text"):
            self._tokens += 1
            self.stream.append(TextDelta(text, self._tokens, index, _legacy_logprobs(choice.get("logprobs"))))
        if reason := choice.get("finish_reason"):
            matched = choice.get("stop_reason")
            is_stop = isinstance(matched, str)
            self._finished.add(index)
            self.stream.append(
                ChoiceFinished(
                    "stop_string" if is_stop and reason == "stop" else _FINISH_REASONS.get(reason, "eos"),
                    matched if is_stop else None,
                    index,
                )
            )

    def _take_delta(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None) -> None:
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            self._tokens += 1
            self._reasoning_tokens += 1
            self.stream.append(ReasoningDelta(reasoning, self._tokens, index))
        if text := delta.get("content"):
            entries = _logprobs((logprobs or {}).get("content"))
            self._tokens += len(entries) if entries else 1
            self.stream.append(TextDelta(text, self._tokens, index, entries))
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            place = (index, call.get("index", 0))
            self._tokens += 1
            if place not in self._calls:
                self._calls[place] = sum(1 for choice, _ in self._calls if choice == index)
                name = function.get("name") or ""
                call_id = call.get("id") or f"call_{index}_{self._calls[place]}"
                self.stream.append(ToolCallStart(self._calls[place], call_id, name, self._tokens, index))
            if arguments := function.get("arguments"):
                self.stream.append(ToolCallArguments(arguments, self._tokens, index))

    def _usage(self) -> Usage:
        guess = Usage(self.stream.usage.prompt_tokens, 0, self._tokens, self._reasoning_tokens)
        return self._said or guess

    def _end(self) -> None:
        if len(self._finished) < self._choices:
            self._fail("engine_unavailable", "The upstream ended its stream in the middle of the answer.")
        else:
            self.stream.append(Finished(self._usage()))

    def _fail(self, code: str, message: str) -> None:
        logger.warning("upstream_failed code=%s", code)
        self.stream.append(Failed(code, message, self._usage()))

    def _refused(self, status: int, body: bytes) -> None:
        """Another status than 200: the caller's fault only where the upstream says so of the request itself."""
        try:
            error = json.loads(body).get("error") or {}
        except (ValueError, AttributeError):
            error = {}
        error = error if isinstance(error, dict) else {"message": str(error)}
        message = str(error.get("message") or f"status {status}")[:1000]
        fields = {"param": str(error["param"])} if error.get("param") else {}
        if status == 400 and _TOO_LONG.search(f"{error.get('code')} {error.get('type')} {message}"):
            code = "context_length_exceeded"
        elif status in (400, 413, 422):
            code = "invalid_request"
        elif status == 404:
            code = "model_not_served"
        elif status == 429:
            code = "engine_overloaded"
        else:
            code, message = "upstream_error", f"The upstream answered with status {status}."
        logger.warning("upstream_refused status=%s code=%s", status, code)
        self.stream.append(Failed(code, message, Usage(), fields))


class _EmbeddingCall(_Call):
    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        body = orjson.loads(await answer.read())
        vectors = body.get("data") if isinstance(body, dict) else None
        if not vectors:
            self._fail("upstream_error", "The upstream's answer holds no embeddings.")
            return
        if usage := body.get("usage"):
            self._said = _usage_of(usage)
            self.stream.is_estimated = False
        counts = self._usage()
        self.stream.append(Started(counts.prompt_tokens, counts.cached_tokens))
        self.stream.append(TextDelta(orjson.dumps(vectors).decode(), 0))
        self.stream.append(ChoiceFinished("eos"))
        self.stream.append(Finished(counts))

    def _refused(self, status: int, body: bytes) -> None:
        if status in (404, 405, 501):
            # An upstream without the path is not a broken one.
            message = "The server behind this model does not serve embeddings."
            self.stream.append(Failed("invalid_request", message, Usage(), {"param": "model"}))
        else:
            super()._refused(status, body)


class _Frames:
    """Cuts the bytes of an SSE stream into the data of its events. Comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Raises ValueError for a frame that does not end."""
        text = self._rest + piece
        if b"\r" in text:
            # A CR that ends the piece may be half of a line end.
            text, held = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
            text = text.replace(b"\r\n", b"\n")
        else:
            held = b""
        *blocks, rest = text.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > FRAME_LIMIT_BYTES:
            raise ValueError(f"A frame is longer than {FRAME_LIMIT_BYTES} bytes.")
        return [data for block in blocks if (data := _data_of(block))]


def _data_of(block: bytes) -> bytes:
    if block.startswith(b"data:") and b"\n" not in block:
        return block[5:].lstrip(b" ")
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def _usage_of(usage: dict[str, Any]) -> Usage:
    prompt = usage.get("prompt_tokens") or 0
    completion = usage.get("completion_tokens") or 0
    details = usage.get("prompt_tokens_details") or {}
    cached = min(details.get("cached_tokens") or 0, prompt)
    # OpenAI's field, and what gateways before Anthropic's models call it; all count these tokens in the prompt's.
    written = (
        details.get("cache_write_tokens")
        or details.get("cache_creation_tokens")
        or usage.get("cache_creation_input_tokens")
        or 0
    )
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return Usage(prompt, cached, completion, min(reasoning, completion), min(written, prompt - cached))


def _logprobs(entries: list[dict[str, Any]] | None) -> list[TokenLogprob] | None:
    if not entries:
        return None
    return [
        TokenLogprob(
            entry["token"],
            bytes(entry.get("bytes") or entry["token"].encode()),
            entry["logprob"],
            [
                TopLogprob(top["token"], bytes(top.get("bytes") or top["token"].encode()), top["logprob"])
                for top in entry.get("top_logprobs") or ()
            ],
        )
        for entry in entries
    ]


def _legacy_logprobs(logprobs: dict[str, Any] | None) -> list[TokenLogprob] | None:
    """The four arrays of legacy Completions."""
    if not logprobs or not logprobs.get("tokens"):
        return None
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    return [
        TokenLogprob(
            token, token.encode(), value or 0.0, [TopLogprob(t, t.encode(), v) for t, v in (top or {}).items()]
        )
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=False)
    ]


def _embedding_body(embedding: Embedding, model: str) -> bytes:
    fields: dict[str, Any] = {"model": model, "input": embedding.inputs, "encoding_format": embedding.encoding_format}
    if embedding.dimensions is not None:
        fields["dimensions"] = embedding.dimensions
    return orjson.dumps(fields)


def _body(request: GenerationRequest, model: str, max_tokens: int) -> bytes:
    sampling = request.sampling
    fields: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "stop": request.stop or None,
        "n": request.n if request.n > 1 else None,
        "ignore_eos": request.ignore_eos or None,
    }
    if request.messages is None:
        fields["prompt"] = request.prompt_text if request.prompt_tokens is None else request.prompt_tokens
        fields["echo"] = request.echo or None
        fields["logprobs"] = request.top_logprobs if request.logprobs else None
    else:
        fields |= _chat_fields(request, request.messages)
    return orjson.dumps({name: value for name, value in fields.items() if value is not None})


def _chat_fields(request: GenerationRequest, messages: list[Message]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "messages": [_message(message) for message in messages],
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "chat_template_kwargs": request.template_options or None,
        "continue_final_message": request.continue_final_message or None,
        "add_generation_prompt": False if request.continue_final_message else None,
    }
    # Few servers know OpenAI's `allowed_tools`; all know fewer tools.
    names = request.tool_choice.names if request.tool_choice.mode in ("allowed", "required") else ()
    tools = [tool for tool in request.tools if not names or tool.name in names]
    if tools:
        fields["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": tool.strict,
                },
            }
            for tool in tools
        ]
        fields["tool_choice"] = _tool_choice(request)
        fields["parallel_tool_calls"] = request.tool_choice.parallel
    constraint = request.constraint
    if constraint is not None:
        if constraint.kind == "json_object":
            fields["response_format"] = {"type": "json_object"}
        elif constraint.kind == "json_schema":
            schema = {"name": "answer", "schema": orjson.loads(constraint.text), "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            fields[f"guided_{constraint.kind}"] = constraint.text
    return fields


def _tool_choice(request: GenerationRequest) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.names[0]}}
    return "auto" if choice.mode == "allowed" else choice.mode


def _message(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name:
        fields["name"] = message.name
    return fields
