"""Translation between the protobuf messages and our plain shapes, both directions side by side. No I/O, no state."""

from __future__ import annotations

import json
from typing import Any, cast

from inference_grpc.core.request import (
    ChatPrompt,
    Constraint,
    Embedding,
    Message,
    Request,
    SamplingParams,
    Tool,
    ToolCall,
    ToolChoice,
)
from inference_grpc.errors import InvalidRequest
from inference_grpc.events import (
    ChoiceFinished,
    Event,
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
from inference_grpc.protos.v1 import inference_pb2 as pb

# The longest message either side takes: a joined step or a prompt of a full context, with room.
MESSAGE_BYTES = 64 << 20
# A peer whose host vanished is noticed within a minute, though no request runs.
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

# Initial metadata of a Session that the engine has taken; a call that failed to connect has none.
SESSION_KEY = "engine-session"
# Beside it: GetInfo's fingerprint, so that every event stream of the session has it at no cost.
FINGERPRINT_KEY = "engine-fingerprint"
# And its features, separated by commas.
FEATURES_KEY = "engine-features"
# Trailing metadata of a call that failed with an engine error; the fields are a JSON object.
ERROR_CODE_KEY = "engine-error-code"
ERROR_FIELDS_KEY = "engine-error-fields"

_MODES = ("auto", "none", "required", "named", "allowed")  # by ToolChoice.Mode
_REASON_NUMBERS: dict[FinishReason, pb.FinishReason] = {
    "eos": pb.EOS,
    "stop_string": pb.STOP_STRING,
    "length": pb.LENGTH,
    "context_full": pb.CONTEXT_FULL,
    "tool_calls": pb.TOOL_CALLS,
    "cancelled": pb.CANCELLED,
    "content_filter": pb.CONTENT_FILTER,
}
_REASONS: dict[int, FinishReason] = {number: reason for reason, number in _REASON_NUMBERS.items()}
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)

# --- requests -------------------------------------------------------------------------------------------------------


def chat_to_proto(chat: ChatPrompt) -> pb.ChatPrompt:
    return pb.ChatPrompt(
        messages=[
            pb.Message(
                role=message.role,
                content=message.content or "",
                has_content=message.content is not None,
                reasoning=message.reasoning or "",
                tool_calls=[
                    pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments_json)
                    for call in message.tool_calls
                ],
                tool_call_id=message.tool_call_id or "",
                name=message.name or "",
            )
            for message in chat.messages
        ],
        tools=[
            pb.Tool(
                name=tool.name,
                description=tool.description,
                parameters_json=json.dumps(tool.parameters, ensure_ascii=False),
                strict=tool.strict,
            )
            for tool in chat.tools
        ],
        template_options_json=json.dumps(chat.template_options) if chat.template_options else "",
        continue_final_message=chat.continue_final_message,
    )


def chat_from_proto(chat: pb.ChatPrompt) -> ChatPrompt:
    return ChatPrompt(
        messages=[
            Message(
                role=message.role,
                content=message.content if message.has_content or message.content else None,
                reasoning=message.reasoning or None,
                tool_calls=[ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls],
                tool_call_id=message.tool_call_id or None,
                name=message.name or None,
            )
            for message in chat.messages
        ],
        tools=[
            Tool(
                name=tool.name,
                description=tool.description,
                parameters=_json_object(tool.parameters_json, "tools.parameters"),
                strict=tool.strict,
            )
            for tool in chat.tools
        ],
        template_options=_json_object(chat.template_options_json, "template_options"),
        continue_final_message=chat.continue_final_message,
    )


def _json_object(text: str, param: str) -> dict[str, Any]:  # free form by nature
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be a JSON object.", param=param)
    return value


def request_to_proto(request: Request, handle: int) -> pb.GenerateRequest:
    message = pb.GenerateRequest(
        request_id=request.request_id,
        handle=handle,
        model=request.model,
        tenant=request.tenant,
        sampling=_sampling_to_proto(request.sampling),
        max_tokens=request.max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        n=request.n,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        deadline_unix_ms=request.deadline_unix_ms,
        priority=request.priority,
        final_only=request.final_only,
        echo=request.echo,
    )
    prompt = request.prompt
    if request.embedding is not None:
        message.embedding.CopyFrom(_embedding_to_proto(request.embedding))
    elif isinstance(prompt, ChatPrompt):
        message.chat.CopyFrom(chat_to_proto(prompt))
    elif isinstance(prompt, str):
        message.text = prompt
    else:
        message.tokens.ids.extend(prompt)
    constraint = request.constraint
    if constraint is not None:
        value: str | bool = True if constraint.kind == "json_object" else constraint.text
        setattr(message.constraint, constraint.kind, value)
    choice = request.tool_choice
    if choice.mode != "auto" or choice.names or not choice.parallel:
        mode = pb.ToolChoice.Mode.Value(choice.mode.upper())
        message.tool_choice.CopyFrom(pb.ToolChoice(mode=mode, names=choice.names, sequential=not choice.parallel))
    return message


def request_from_proto(message: pb.GenerateRequest) -> Request:
    """Raises `InvalidRequest` for what protobuf itself cannot refuse: no prompt, bad JSON, an unknown enum value."""
    kind = message.WhichOneof("prompt")
    prompt: ChatPrompt | str | list[int]
    if kind == "chat":
        prompt = chat_from_proto(message.chat)
    elif kind == "text":
        prompt = message.text
    elif kind == "tokens":
        prompt = list(message.tokens.ids)
    elif message.HasField("embedding"):
        prompt = ""
    else:
        raise InvalidRequest("The request has no prompt: set chat, text or tokens.", param="prompt")
    if message.top_logprobs > 20:
        raise InvalidRequest(f"top_logprobs is {message.top_logprobs}; the most is 20.", param="top_logprobs", limit=20)
    return Request(
        request_id=message.request_id,
        prompt=prompt,
        sampling=_sampling_from_proto(message.sampling),
        model=message.model,
        tenant=message.tenant,
        max_tokens=message.max_tokens,
        stop=list(message.stop),
        ignore_eos=message.ignore_eos,
        n=message.n or 1,
        logprobs=message.logprobs,
        top_logprobs=message.top_logprobs,
        constraint=_constraint_from_proto(message),
        tool_choice=_tool_choice_from_proto(message.tool_choice),
        deadline_unix_ms=message.deadline_unix_ms,
        priority=message.priority,
        final_only=message.final_only,
        echo=message.echo,
        embedding=_embedding_from_proto(message.embedding) if message.HasField("embedding") else None,
    )


def _embedding_to_proto(embedding: Embedding) -> pb.Embedding:
    inputs = [
        pb.EmbeddingInput(text=each) if isinstance(each, str) else pb.EmbeddingInput(tokens=pb.TokenIds(ids=each))
        for each in embedding.inputs
    ]
    return pb.Embedding(inputs=inputs, dimensions=embedding.dimensions, base64=embedding.base64)


def _embedding_from_proto(message: pb.Embedding) -> Embedding:
    inputs = [each.text if each.WhichOneof("kind") == "text" else list(each.tokens.ids) for each in message.inputs]
    if not inputs:
        raise InvalidRequest("There is nothing to embed.", param="input")
    return Embedding(inputs, message.dimensions, message.base64)


def _sampling_to_proto(sampling: SamplingParams) -> pb.Sampling:
    message = pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
    )
    if sampling.seed is not None:
        message.seed = sampling.seed
    return message


def _sampling_from_proto(message: pb.Sampling) -> SamplingParams:
    given = {name: getattr(message, name) for name in _SAMPLING_FIELDS if message.HasField(name)}
    return SamplingParams(**given, logit_bias=dict(message.logit_bias))


def _constraint_from_proto(message: pb.GenerateRequest) -> Constraint | None:
    kind = message.constraint.WhichOneof("kind")
    if kind is None:
        return None
    return Constraint(kind=kind, text="" if kind == "json_object" else getattr(message.constraint, kind))


def _tool_choice_from_proto(message: pb.ToolChoice) -> ToolChoice:
    if not 0 <= message.mode < len(_MODES):
        raise InvalidRequest(f"tool_choice.mode {message.mode} is not known.", param="tool_choice")
    return ToolChoice(
        mode=cast(Any, _MODES[message.mode]),  # the tuple holds exactly the Literal's values
        names=list(message.names),
        parallel=not message.sequential,
    )


# --- events ---------------------------------------------------------------------------------------------------------


def usage_to_proto(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def usage_from_proto(usage: pb.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens)


def logprobs_to_proto(tokens: list[TokenLogprob]) -> pb.Logprobs:
    return pb.Logprobs(
        tokens=[
            pb.TokenLogprob(
                token=token.token,
                token_bytes=token.token_bytes,
                logprob=token.logprob,
                top=[
                    pb.TopLogprob(token=top.token, token_bytes=top.token_bytes, logprob=top.logprob)
                    for top in token.top
                ],
            )
            for token in tokens
        ]
    )


def _logprobs_from_proto(message: pb.Logprobs) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            token.token,
            token.token_bytes,
            token.logprob,
            [TopLogprob(top.token, top.token_bytes, top.logprob) for top in token.top],
        )
        for token in message.tokens
    ]


def reason_to_proto(reason: FinishReason) -> pb.FinishReason:
    return _REASON_NUMBERS[reason]


def event_from_row(kind: int, text: str, completion_tokens: int, choice: int, detail: pb.Detail | None) -> Event:
    """The event of one row of a `SessionStep`. Raises ValueError for a row that this version cannot read."""
    if kind == pb.TEXT:
        logprobs = None if detail is None else _logprobs_from_proto(detail.logprobs)
        return TextDelta(text, completion_tokens, choice, logprobs)
    if kind == pb.REASONING:
        return ReasoningDelta(text, completion_tokens, choice)
    if kind == pb.TOOL_CALL_ARGUMENTS:
        return ToolCallArguments(text, completion_tokens, choice)
    if detail is None:
        raise ValueError(f"A row of kind {kind} came without its detail.")
    if kind == pb.STARTED:
        return Started(detail.started.prompt_tokens, detail.started.cached_tokens)
    if kind == pb.TOOL_CALL_START:
        call = detail.tool_call
        return ToolCallStart(call.index, call.id, call.name, completion_tokens, choice)
    if kind == pb.CHOICE_FINISHED:
        end = detail.choice_finished
        matched = end.matched_stop if end.reason == pb.STOP_STRING else None
        return ChoiceFinished(_REASONS[end.reason], matched, choice)
    if kind == pb.FINISHED:
        return Finished(usage_from_proto(detail.finished.usage), detail.finished.cancelled)
    if kind == pb.FAILED:
        failed = detail.failed
        return Failed(failed.code, failed.message, usage_from_proto(failed.usage), dict(failed.fields))
    raise ValueError(f"Row kind {kind} is not known.")
