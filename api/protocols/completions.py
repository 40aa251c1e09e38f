"""Legacy Completions: POST /v1/completions. One request per prompt; choice i * n + c is choice c of prompt i."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec
import orjson
from msgspec import Meta, Struct

from api.protocols.chat.translate import logit_bias, stop_strings
from api.protocols.decoding import Count, Seed, TokenId, TopK, decode, ignored, refused
from api.protocols.dialect import ErrorStyle
from api.protocols.errors import BadRequest, missing
from api.protocols.openai import DONE, KEEPALIVE, error_body, error_frame, usage_object
from api.protocols.request import GenerationRequest, Sampling
from inference_grpc.events import (
    ChoiceFinished,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    Usage,
)

__all__ = ["ERROR_STYLE", "NAME", "PATHS", "Parsed", "Writer", "error_body", "make_writer", "parse"]

NAME = "completions"
PATHS = frozenset({"/v1/completions"})
ERROR_STYLE: ErrorStyle = "openai"

MAX_PROMPTS = 32
MAX_CHOICES = 8
DEFAULT_MAX_TOKENS = 16  # this API's own default

_FINISH_REASONS: dict[FinishReason, str] = {
    "eos": "stop",
    "stop_string": "stop",
    "length": "length",
    "context_full": "length",
    "tool_calls": "stop",
    "content_filter": "content_filter",
    "cancelled": "stop",
}


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, ignored("chunks are not padded")] = None


class Body(Struct, kw_only=True):
    model: str
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Seed | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    suffix: Annotated[Any, refused("the model completes text at its end only; leave 'suffix' out")] = None


_BODY = msgspec.json.Decoder(Body)


@dataclass(slots=True)
class Parsed:
    requests: list[GenerationRequest]
    includes_usage: bool


def parse(body: bytes) -> Parsed:
    wire = decode(_BODY, body)
    is_stream = bool(wire.stream)
    if wire.stream_options and not is_stream:
        raise BadRequest("'stream_options' needs 'stream': true.", "stream_options", "invalid_value")
    choices = wire.n or 1
    if (wire.best_of or 1) > choices:
        raise BadRequest(
            f"'best_of' ({wire.best_of}) above 'n' ({choices}) is not supported; raise 'n' and choose in the client.",
            "best_of",
            "unsupported_value",
        )
    stop = stop_strings(wire.stop)
    sampling = Sampling(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        seed=wire.seed,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        logit_bias=logit_bias(wire.logit_bias),
    )
    requests = [
        GenerationRequest(
            model=wire.model,
            stream=is_stream,
            prompt_text=prompt if isinstance(prompt, str) else None,
            prompt_tokens=None if isinstance(prompt, str) else prompt,
            sampling=sampling,
            max_tokens=wire.max_tokens or DEFAULT_MAX_TOKENS,
            stop=stop,
            ignore_eos=bool(wire.ignore_eos),
            n=choices,
            logprobs=wire.logprobs is not None,
            top_logprobs=wire.logprobs or 0,
            echo=bool(wire.echo),
            end_user=wire.user,
        )
        for prompt in _prompts(wire.prompt)
    ]
    return Parsed(requests, includes_usage=bool(wire.stream_options and wire.stream_options.include_usage))


def _prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """A text, a list of texts, one prompt as token ids, or a list of those."""
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, str):
        prompts: list[str | list[int]] = [prompt]
    elif all(isinstance(part, int) for part in prompt):
        prompts = [[part for part in prompt if isinstance(part, int)]]
    elif any(isinstance(part, int) for part in prompt):
        raise BadRequest("'prompt' mixes token ids with whole prompts.", "prompt", "invalid_type")
    else:
        prompts = [part for part in prompt if not isinstance(part, int)]
    if len(prompts) > MAX_PROMPTS:
        raise BadRequest(
            f"'prompt' holds {len(prompts)} prompts; at most {MAX_PROMPTS} go in one call.", "prompt", "invalid_value"
        )
    for index, item in enumerate(prompts):
        if not item:
            path = f"prompt[{index}]" if len(prompts) > 1 else "prompt"
            raise BadRequest(f"'{path}' must not be empty.", path, "invalid_value")
    return prompts


# Writer ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    texts: list[str]
    logprobs: list[dict[str, Any]]
    offset: int = 0
    finish_reason: str = "stop"


class Writer:
    def __init__(self, parsed: Parsed, *, request_id: UUID, model: str, created: int) -> None:
        first = parsed.requests[0]
        self._is_stream = first.stream
        self._includes_usage = parsed.includes_usage
        self._wants_logprobs = first.logprobs
        self._head = {"id": f"cmpl-{request_id.hex}", "object": "text_completion", "created": created, "model": model}
        self._fingerprint: str | None = None
        self._choices = [_Choice([], []) for _ in range(len(parsed.requests) * first.n)]
        opening = orjson.dumps(self._head)[:-1]
        self._text_heads = [
            b'data: %b,"choices":[{"index":%d,"text":' % (opening, index) for index in range(len(self._choices))
        ]
        self._tail = b""
        self._opening = opening
        self._usage = Usage()

    def start(self, event: Started) -> bytes:
        self._fingerprint = event.fingerprint or None
        usage = b',"usage":null' if self._includes_usage else b""
        self._tail = b'}],"system_fingerprint":%b%b}\n\n' % (orjson.dumps(self._fingerprint), usage)
        return b""

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes:
        match event:
            case TextDelta():
                return self._text(event.choice, event.text, event.logprobs)
            case ReasoningDelta():
                # A raw prompt has no thinking part of its own: whatever the model says is the text.
                return self._text(event.choice, event.text, None)
            case ChoiceFinished():
                return self._choice_finished(event)
            case Finished():
                return self._finish(event)
            case _:
                return b""

    def _text(self, index: int, text: str, logprobs: list[TokenLogprob] | None) -> bytes:
        choice = self._choices[index]
        entry = None
        if logprobs and self._wants_logprobs:
            entry = self._logprobs(choice, logprobs)
            choice.logprobs.append(entry)
        choice.texts.append(text)
        if not self._is_stream or not (text or entry):
            return b""
        return b'%b%b,"logprobs":%b,"finish_reason":null%b' % (
            self._text_heads[index],
            orjson.dumps(text),
            orjson.dumps(entry),
            self._tail,
        )

    def _logprobs(self, choice: _Choice, tokens: list[TokenLogprob]) -> dict[str, Any]:
        """The old form: four arrays side by side; offsets count characters from the start of the choice's text."""
        offsets = []
        for token in tokens:
            offsets.append(choice.offset)
            choice.offset += len(token.token)
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{top.token: top.logprob for top in token.top} for token in tokens],
            "text_offset": offsets,
        }

    def _choice_finished(self, event: ChoiceFinished) -> bytes:
        reason = _FINISH_REASONS[event.reason]
        self._choices[event.choice].finish_reason = reason
        if not self._is_stream:
            return b""
        return b'%b"","logprobs":null,"finish_reason":%b%b' % (
            self._text_heads[event.choice],
            orjson.dumps(reason),
            self._tail,
        )

    def _finish(self, event: Finished) -> bytes:
        self._usage = event.usage
        if not self._is_stream:
            return b""
        usage = b""
        if self._includes_usage:
            usage = b'data: %b,"choices":[],"system_fingerprint":%b,"usage":%b}\n\n' % (
                self._opening,
                orjson.dumps(self._fingerprint),
                orjson.dumps(usage_object(event.usage)),
            )
        return usage + DONE

    def fail(self, code: str, message: str) -> bytes:
        return error_frame(code, message)

    def keepalive(self) -> bytes:
        return KEEPALIVE

    def result(self) -> bytes:
        choices = [
            {
                "index": index,
                "text": "".join(choice.texts),
                "logprobs": _joined(choice.logprobs) if self._wants_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        return orjson.dumps(
            {
                **self._head,
                "choices": choices,
                "usage": usage_object(self._usage),
                "system_fingerprint": self._fingerprint,
            }
        )


def _joined(entries: list[dict[str, Any]]) -> dict[str, Any]:
    columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {column: [value for entry in entries for value in entry[column]] for column in columns}


def make_writer(parsed: Parsed, *, request_id: UUID, model: str, created: int) -> Writer:
    return Writer(parsed, request_id=request_id, model=model, created=created)
