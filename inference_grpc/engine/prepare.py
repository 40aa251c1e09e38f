"""From a request to tokens: check, render the template, tokenize, set up a stream a choice. Thread-safe, no device."""

from __future__ import annotations

import functools
import math
import secrets
from typing import Final

from inference_grpc.core.request import ChatPrompt, Request, SamplingParams, Tool, ToolChoice
from inference_grpc.engine.requests import PreparedRequest
from inference_grpc.errors import InvalidRequest, ModelNotServed, PromptTooLong
from inference_grpc.text.chat_template import ChatTemplate
from inference_grpc.text.constraint import CompiledConstraint, ConstraintCompiler
from inference_grpc.text.constraint_grammar import needs_grammar
from inference_grpc.text.families import Family, ReasoningStart, family_of, reasoning_start
from inference_grpc.text.output_parser import make_parser
from inference_grpc.text.stream import ChoiceStream
from inference_grpc.text.tokenizer import ModelTokenizer

MAX_CHOICES: Final = 128
MAX_TOP_LOGPROBS: Final = 20
# The end of a prompt that says whether the template has opened the model's reasoning.
_SUFFIX_CHARS: Final = 64


class Preparer:
    def __init__(
        self, *, model: str, tokenizer: ModelTokenizer, template: ChatTemplate | None, context_tokens: int
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self._context_tokens = context_tokens
        self._family: Family = family_of(template.source if template else "")

    @functools.cached_property
    def _compiler(self) -> ConstraintCompiler:
        """Made for the first request that needs it: half a second that a start need not wait for."""
        tokenizer = self._tokenizer
        return ConstraintCompiler(tokenizer.to_json(), tokenizer.vocabulary, sorted(tokenizer.eos_ids))

    def prepare(self, request: Request) -> PreparedRequest:
        """Raises `EngineError`s that name the field, the value and the limit."""
        self._check(request)
        prompt_ids, prompt_text = self._tokenize(request.prompt, request.tool_choice)
        suffix = prompt_text[-_SUFFIX_CHARS:]
        compiled = self._compile(request, suffix)
        max_tokens = self._output_limit(request, len(prompt_ids))
        echo = ""
        if request.echo:
            echo = request.prompt if isinstance(request.prompt, str) else self._decode(prompt_ids)
        return PreparedRequest(
            request=request,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            seed=secrets.randbits(64) if request.sampling.seed is None else request.sampling.seed,
            eos_ids=frozenset() if request.ignore_eos else self._tokenizer.eos_ids,
            streams=[self._stream(request, choice, suffix, echo) for choice in range(request.n)],
            matchers=[compiled.new_matcher() if compiled else None for _ in range(request.n)],
        )

    def count_tokens(self, prompt: ChatPrompt | str) -> int:
        return len(self._tokenize(prompt, ToolChoice())[0])

    def _check(self, request: Request) -> None:
        if request.model not in ("", self._model):
            raise ModelNotServed(
                f"This engine serves {self._model!r}, not {request.model!r}.", model=request.model, served=self._model
            )
        if request.embedding is not None:
            raise InvalidRequest(f"The model {self._model!r} generates text; it does not embed.", param="model")
        if not 1 <= request.n <= MAX_CHOICES:
            raise InvalidRequest(f"n is {request.n}; it must be 1 to {MAX_CHOICES}.", param="n")
        if request.max_tokens < 0:
            raise InvalidRequest(f"max_tokens is {request.max_tokens}; it must not be negative.", param="max_tokens")
        if not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidRequest(
                f"top_logprobs is {request.top_logprobs}; it must be 0 to {MAX_TOP_LOGPROBS}.", param="top_logprobs"
            )
        if "" in request.stop:
            raise InvalidRequest("A stop string is empty; leave it out.", param="stop")
        if request.echo and isinstance(request.prompt, ChatPrompt):
            raise InvalidRequest("echo repeats a text prompt; a chat has none.", param="echo")
        _check_sampling(request.sampling, self._tokenizer.vocabulary)

    def _tokenize(self, prompt: ChatPrompt | str | list[int], tool_choice: ToolChoice) -> tuple[list[int], str]:
        """The ids, and the text as far as there is one."""
        if isinstance(prompt, ChatPrompt):
            if self._template is None:
                raise InvalidRequest(
                    f"The model {self._model!r} has no chat template; send a text prompt instead.", param="messages"
                )
            if not prompt.messages:
                raise InvalidRequest("There are no messages.", param="messages")
            text = self._template.render(prompt, tool_choice)
            ids = self._tokenizer.encode_prompt(text)
        elif isinstance(prompt, str):
            text, ids = prompt, self._tokenizer.encode_prompt(prompt)
        else:
            text, ids = "", prompt
            self._check_ids(prompt)
        if not ids:
            raise InvalidRequest("The prompt is empty; it must have at least one token.", param="prompt")
        return ids, text

    def _check_ids(self, ids: list[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self._tokenizer.vocabulary:
                raise InvalidRequest(
                    f"The prompt holds token {token_id}; the vocabulary has {self._tokenizer.vocabulary}.",
                    param="prompt",
                )

    def _output_limit(self, request: Request, prompt_tokens: int) -> int:
        room = self._context_tokens - prompt_tokens
        if room < max(request.max_tokens, 1):
            raise PromptTooLong(
                f"The prompt has {prompt_tokens} tokens and max_tokens is {request.max_tokens or 'not set'}; "
                f"together they may be {self._context_tokens}.",
                prompt_tokens=prompt_tokens,
                max_tokens=request.max_tokens,
                context_tokens=self._context_tokens,
            )
        return request.max_tokens or room

    def _compile(self, request: Request, prompt_suffix: str) -> CompiledConstraint | None:
        tools: list[Tool] = []
        reasoning: ReasoningStart = "none"
        if isinstance(request.prompt, ChatPrompt):
            tools = request.prompt.tools
            reasoning = reasoning_start(self._may_think(request.prompt), prompt_suffix)
        if not needs_grammar(request.constraint, tools, request.tool_choice):
            return None
        return self._compiler.compile(request.constraint, tools, request.tool_choice, self._family, reasoning=reasoning)

    def _stream(self, request: Request, choice: int, prompt_suffix: str, echo: str) -> ChoiceStream:
        parser = None
        if isinstance(request.prompt, ChatPrompt):
            parser = make_parser(
                self._family,
                request.prompt.tools,
                request.tool_choice,
                self._may_think(request.prompt),
                prompt_suffix,
            )
        return ChoiceStream(
            self._tokenizer,
            choice=choice,
            stops=request.stop,
            parser=parser,
            final_only=request.final_only,
            echo=echo,
        )

    def _may_think(self, prompt: ChatPrompt) -> bool:
        """Whether the model may open its reasoning: its template knows of it and the caller did not rule it out."""
        knows = self._template is not None and self._template.may_think
        return knows and prompt.template_options.get("enable_thinking") is not False

    def _decode(self, token_ids: list[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, token_ids)).decode("utf-8", "replace")


def _check_sampling(sampling: SamplingParams, vocabulary: int) -> None:
    ranges: list[tuple[str, float, float, float]] = [
        ("temperature", sampling.temperature, 0.0, 100.0),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("top_k", sampling.top_k, 0, math.inf),
        ("presence_penalty", sampling.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0),
        ("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0),
    ]
    for name, value, least, most in ranges:
        if not least <= value <= most:  # false for NaN too
            raise InvalidRequest(f"{name} is {value}; it must be {least:g} to {most:g}.", param=name)
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocabulary:
            raise InvalidRequest(
                f"logit_bias names token {token_id}; the vocabulary has {vocabulary}.", param="logit_bias"
            )
        if not -100.0 <= bias <= 100.0:
            raise InvalidRequest(
                f"logit_bias of token {token_id} is {bias}; it must be -100 to 100.", param="logit_bias"
            )
