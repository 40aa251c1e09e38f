"""What an engine says of one request, as a client sees it: one class per kind of event.

Order of one request: `Started`, then deltas in the order of their tokens, then one `ChoiceFinished` per choice, then
exactly one of `Finished` or `Failed`. `completion_tokens` is cumulative over all choices, so joined or dropped text
never miscounts usage. Every backend of the gateway, ours or an HTTP upstream, yields these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["eos", "stop_string", "length", "context_full", "tool_calls", "cancelled", "content_filter"]


@dataclass(slots=True)
class Usage:
    """Token counts of one request. Cached ones and those written to a cache are part of prompt, reasoning part of
    completion. An engine writes to its cache at no cost and says 0; upstreams that charge for it say how many."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(slots=True)
class TopLogprob:
    token: str
    token_bytes: bytes
    logprob: float


@dataclass(slots=True)
class TokenLogprob:
    token: str
    token_bytes: bytes
    logprob: float
    top: list[TopLogprob]


@dataclass(slots=True)
class Started:
    """`fingerprint` names what decides which tokens a seed gives; empty where nobody says it."""

    prompt_tokens: int
    cached_tokens: int
    fingerprint: str = ""


@dataclass(slots=True)
class TextDelta:
    text: str
    completion_tokens: int
    choice: int = 0
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class ReasoningDelta:
    text: str
    completion_tokens: int
    choice: int = 0


@dataclass(slots=True)
class ToolCallStart:
    index: int
    id: str
    name: str
    completion_tokens: int
    choice: int = 0


@dataclass(slots=True)
class ToolCallArguments:
    """A fragment of the JSON arguments of the choice's latest tool call."""

    text: str
    completion_tokens: int
    choice: int = 0


@dataclass(slots=True)
class ChoiceFinished:
    reason: FinishReason
    matched_stop: str | None = None
    choice: int = 0


@dataclass(slots=True)
class Finished:
    usage: Usage
    cancelled: bool = False


@dataclass(slots=True)
class Failed:
    """The request did not end by itself. `code` is one of `inference_grpc.errors`, `usage` what was produced before."""

    code: str
    message: str
    usage: Usage = field(default_factory=Usage)
    fields: dict[str, str] = field(default_factory=dict)


Delta = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments
Event = Started | Delta | ChoiceFinished | Finished | Failed


def join_fragments(last: Event, event: Event) -> bool:
    """Add `event` to `last` when both are fragments of one text of one choice; says whether it did. Changes `last`."""
    match last, event:
        case TextDelta(), TextDelta() if last.choice == event.choice:
            if (last.logprobs is None) != (event.logprobs is None):
                return False
            if last.logprobs is not None and event.logprobs is not None:
                last.logprobs.extend(event.logprobs)
            last.text += event.text
            last.completion_tokens = event.completion_tokens
        case ReasoningDelta(), ReasoningDelta() if last.choice == event.choice:
            last.text += event.text
            last.completion_tokens = event.completion_tokens
        case ToolCallArguments(), ToolCallArguments() if last.choice == event.choice:
            last.text += event.text
            last.completion_tokens = event.completion_tokens
        case _:
            return False
    return True
