"""A request made into a script: every token of every choice, fixed before the first one is sent."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Literal

from inference_grpc.core.request import ChatPrompt, Embedding, Request
from inference_grpc.errors import BY_CODE, InvalidRequest, PromptTooLong
from inference_grpc.events import FinishReason, TokenLogprob, TopLogprob
from inference_grpc.scripted.answer import Call, Reasoning, Text, answer_parts, last_user_text
from inference_grpc.scripted.directives import Directives, parse_directives
from inference_grpc.scripted.embedding import embedding_objects
from inference_grpc.scripted.scenario import Scenario

MESSAGE_TOKENS = 2  # what the template adds to a message: its role and its end
REPLY_TOKENS = 1  # the head of the reply
CHOICES_LIMIT = 128

_WORD = re.compile(r"\s*\S+|\s+$")
# Arguments hold few blanks; smaller tokens let them stream in fragments, as a real engine's do.
_FRAGMENT = re.compile(r"\s*(?:\w+|[^\w\s]+)|\s+$")


@dataclass(slots=True)
class Token:
    kind: Literal["text", "reasoning", "call", "arguments"]
    text: str
    call: Call | None = None
    call_index: int = 0
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class Choice:
    tokens: list[Token]
    reason: FinishReason = "eos"
    matched_stop: str | None = None


@dataclass(slots=True)
class Script:
    """A prepared request of the scripted engine (`core.backend.Prepared`)."""

    request: Request
    prompt_tokens: int
    cached_tokens: int
    directives: Directives
    choices: list[Choice]
    # Said before the answer, and no token of it.
    echo: str = field(default="")


def count_tokens(prompt: ChatPrompt | str | list[int]) -> int:
    """A token is a word; a message costs two more, and the head of the reply one."""
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return _words(prompt)
    total = REPLY_TOKENS + sum(
        _words(json.dumps(tool.parameters)) + _words(f"{tool.name} {tool.description}") for tool in prompt.tools
    )
    for message in prompt.messages:
        total += MESSAGE_TOKENS + _words(message.content or "") + _words(message.reasoning or "")
        total += sum(_words(f"{call.name} {call.arguments_json}") for call in message.tool_calls)
    return total


def _words(text: str) -> int:
    return len(text.split())


def write_script(request: Request, scenario: Scenario) -> Script:
    """Raises `PromptTooLong`, `InvalidRequest`, `UnsupportedSchema` as a real engine would, and what REFUSE orders."""
    _check(request)
    text = last_user_text(request.prompt)
    directives = parse_directives(scenario.directives_for(request.request_id, request.tenant, text))
    if directives.refuse_code is not None:
        raise BY_CODE[directives.refuse_code]("Refused by order of the prompt.", ordered="REFUSE")
    if request.embedding is not None:
        return _embedding_script(request, request.embedding, scenario, directives)
    prompt_tokens = count_tokens(request.prompt)
    room = scenario.context_tokens - prompt_tokens
    if room < max(1, request.max_tokens):
        raise PromptTooLong(
            f"The prompt has {prompt_tokens} tokens and {request.max_tokens} are asked for; "
            f"the context holds {scenario.context_tokens}. Shorten the prompt or lower max_tokens.",
            prompt_tokens=prompt_tokens,
            max_tokens=request.max_tokens,
            context_tokens=scenario.context_tokens,
        )
    echo = ""
    if request.echo:
        echo = request.prompt if isinstance(request.prompt, str) else " ".join(map(str, _token_ids(request.prompt)))
    return Script(
        request=request,
        prompt_tokens=prompt_tokens,
        cached_tokens=min(directives.cached_tokens, prompt_tokens),
        directives=directives,
        choices=[_write_choice(request, directives, index, room) for index in range(request.n)],
        echo=echo,
    )


def _embedding_script(request: Request, embedding: Embedding, scenario: Scenario, directives: Directives) -> Script:
    """The vectors come as text beside the answer, which is empty: no token is made."""
    prompt_tokens = sum(count_tokens(each) for each in embedding.inputs)
    wanted = replace(embedding, base64=embedding.base64 and scenario.embeds_base64)
    vectors = embedding_objects(wanted, scenario.embedding_dimensions)
    return Script(request, prompt_tokens, 0, directives, choices=[Choice([])], echo=vectors)


def _check(request: Request) -> None:
    sampling = request.sampling
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("n", request.n, 1, CHOICES_LIMIT),
        ("temperature", sampling.temperature, 0, 2),
        ("top_p", sampling.top_p, 0, 1),
        ("min_p", sampling.min_p, 0, 1),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
    )
    for param, value, low, high in ranges:
        if not low <= value <= high:
            raise InvalidRequest(f"{param} is {value:g}; it must be from {low:g} to {high:g}.", param=param)
    if isinstance(request.prompt, ChatPrompt) and not request.prompt.messages:
        raise InvalidRequest("The chat has no message.", param="messages")


def _token_ids(prompt: ChatPrompt | str | list[int]) -> list[int]:
    return prompt if isinstance(prompt, list) else []


def _write_choice(request: Request, directives: Directives, index: int, room: int) -> Choice:
    tokens: list[Token] = []
    calls = 0
    for part in answer_parts(request, directives, index):
        match part:
            case Reasoning(text):
                tokens += [Token("reasoning", word) for word in _WORD.findall(text)]
            case Text(text):
                pattern = _FRAGMENT if request.constraint is not None else _WORD
                tokens += [Token("text", word) for word in pattern.findall(text)]
            case Call(arguments_json=arguments):
                tokens.append(Token("call", "", part, calls))
                tokens += [Token("arguments", word) for word in _FRAGMENT.findall(arguments)]
                calls += 1
    choice = Choice(tokens, "tool_calls" if calls else "eos")
    limit = min(request.max_tokens or room, room)
    if request.ignore_eos and tokens and not calls:
        # The answer over and over: its end is what is ignored.
        again = [Token(token.kind, token.text if token.text[:1].isspace() else f" {token.text}") for token in tokens]
        tokens += [again[number % len(again)] for number in range(limit + 1 - len(tokens))]
    _stop_at_string(choice, request.stop)
    if len(choice.tokens) > limit:
        choice.tokens = choice.tokens[:limit]
        choice.reason = "length" if request.max_tokens else "context_full"
        choice.matched_stop = None
    if request.logprobs:
        for token in choice.tokens:
            if token.kind == "text":
                token.logprobs = [_logprob(token.text, request.top_logprobs)]
    return choice


def _stop_at_string(choice: Choice, stops: list[str]) -> None:
    """Cut the text before the earliest stop string; the token that completes it is the last that counts."""
    text = "".join(token.text for token in choice.tokens if token.kind == "text")
    found = [(text.find(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return
    start, stop = min(found)
    end, position = start + len(stop), 0
    for number, token in enumerate(choice.tokens):
        if token.kind != "text":
            continue
        position += len(token.text)
        if position > start:
            # A token object may stand in the list more than once, so it is replaced, not changed.
            kept = max(0, start - (position - len(token.text)))
            choice.tokens[number] = Token("text", token.text[:kept])
        if position >= end:
            del choice.tokens[number + 1 :]
            choice.reason, choice.matched_stop = "stop_string", stop
            return


def _logprob(text: str, alternatives: int) -> TokenLogprob:
    """Made up, yet always the same for a word; the token that was chosen is the likeliest."""
    logprob = -(hashlib.blake2b(text.encode(), digest_size=2).digest()[0] + 1) / 1024
    top = [TopLogprob(text, text.encode(), logprob)]
    top += [
        TopLogprob(f" other{rank}", f" other{rank}".encode(), logprob - 2.0 * rank) for rank in range(1, alternatives)
    ]
    return TokenLogprob(text, text.encode(), logprob, top[:alternatives])
