"""From a Chat Completions body to the internal request. Each refusal names its field by path."""

from __future__ import annotations

from typing import Literal

import orjson

from api.protocols.chat.schema import (
    MAX_STOPS,
    Body,
    FunctionParam,
    MessageParam,
    NamedFunction,
    Part,
    ResponseFormat,
    ToolChoiceParam,
    ToolParam,
)
from api.protocols.decoding import check_metadata, check_one_of
from api.protocols.errors import BadRequest, missing, unsupported
from api.protocols.media import tool_returned
from api.protocols.request import Constraint, GenerationRequest, Message, Sampling, Tool, ToolCall, ToolChoice
from api.protocols.thinking import template_options

ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "developer": "system", "system": "system", "user": "user", "assistant": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip
VERBOSITIES = ("low", "medium", "high")
_MEDIA_PARTS = {"image_url": "an image", "input_audio": "audio", "file": "a file"}


def to_request(body: Body) -> GenerationRequest:
    _check_flags(body)
    tools = _tools(body)
    return GenerationRequest(
        model=body.model,
        stream=bool(body.stream),
        messages=_messages(body.messages),
        tools=tools,
        tool_choice=_tool_choice(body, [tool.name for tool in tools]),
        template_options={
            **(body.chat_template_kwargs or {}),
            **template_options(body.reasoning_effort, "reasoning_effort"),
        },
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            seed=body.seed,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            repetition_penalty=body.repetition_penalty,
            logit_bias=logit_bias(body.logit_bias),
        ),
        max_tokens=_max_tokens(body),
        stop=stop_strings(body.stop),
        ignore_eos=bool(body.ignore_eos),
        n=body.n or 1,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        constraint=_constraint(body),
        end_user=body.safety_identifier or body.user,
    )


def _check_flags(body: Body) -> None:
    if not body.model:
        raise BadRequest("'model' is empty; name a model from GET /v1/models.", "model", "invalid_value")
    if body.stream_options is not None and not body.stream:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value")
    if body.top_logprobs and not body.logprobs:
        raise BadRequest("'top_logprobs' needs 'logprobs': true.", "top_logprobs", "invalid_value")
    if body.modalities and body.modalities != ["text"]:
        raise unsupported("modalities", "The models here answer with text only.", 'Use ["text"].')
    if body.verbosity is not None:
        check_one_of(body.verbosity, VERBOSITIES, "verbosity")
    check_metadata(body.metadata)


def _max_tokens(body: Body) -> int | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise BadRequest(
            f"'max_completion_tokens' ({new}) and 'max_tokens' ({old}) differ; send only the first.",
            "max_tokens",
            "invalid_value",
        )
    return old if new is None else new


def stop_strings(stop: str | list[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"'stop' has {len(stops)} strings; at most {MAX_STOPS} are allowed.", "stop", "invalid_value")
    for index, text in enumerate(stops):
        if not text:
            raise BadRequest("A stop string must not be empty.", f"stop[{index}]", "invalid_value")
    return stops


def logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    result = {}
    for token, value in (bias or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) <= 9):
            raise BadRequest(f"'logit_bias' key {token!r} is not a token id.", "logit_bias", "invalid_value")
        result[int(token)] = value
    return result


# Messages ---------------------------------------------------------------------------------------


def _messages(params: list[MessageParam]) -> list[Message]:
    if not params:
        raise BadRequest("'messages' is empty; send at least one.", "messages", "invalid_value")
    messages: list[Message] = []
    for index, param in enumerate(params):
        check_one_of(param.role, ROLES, f"messages[{index}].role")
        messages.append(_message(param, f"messages[{index}]", messages))
    return messages


def _message(param: MessageParam, path: str, before: list[Message]) -> Message:
    role = ROLES[param.role]
    message = Message(role=role, content=_content(param, path), name=param.name)
    if role == "assistant":
        message.reasoning = param.reasoning_content or param.reasoning
        message.tool_calls = _tool_calls(param, path, len(before))
        if message.content is None and not message.tool_calls:
            message.content = param.refusal
            if message.content is None and message.reasoning is None:
                raise BadRequest(
                    f"'{path}.content' is required unless the assistant turn calls tools.", f"{path}.content",
                    "missing_required_parameter",
                )  # fmt: skip
        return message
    if message.content is None:
        raise missing(f"{path}.content")
    if param.role == "tool":
        if param.tool_call_id is None:
            raise missing(f"{path}.tool_call_id")
        message.tool_call_id = param.tool_call_id
    elif param.role == "function":
        message.tool_call_id = _legacy_call_id(param, path, before)
    return message


def _content(param: MessageParam, path: str) -> str | None:
    if param.content is None or isinstance(param.content, str):
        return param.content
    if not param.content:
        raise BadRequest(f"'{path}.content' is an empty list.", f"{path}.content", "invalid_value")
    return "".join(_part_text(part, param.role, f"{path}.content[{i}]") for i, part in enumerate(param.content))


def _part_text(part: Part, role: str, path: str) -> str:
    if part.type == "text":
        if part.text is None:
            raise missing(f"{path}.text")
        return part.text
    if part.type == "refusal" and role == "assistant":
        if part.refusal is None:
            raise missing(f"{path}.refusal")
        return part.refusal
    if part.type in _MEDIA_PARTS and ROLES[role] == "tool":
        return tool_returned(_MEDIA_PARTS[part.type])
    raise unsupported(path, f"'{path}' is of type '{part.type}', and this model reads text only.", "Send text parts.")


def _tool_calls(param: MessageParam, path: str, position: int) -> list[ToolCall]:
    calls = []
    for index, call in enumerate(param.tool_calls or []):
        if call.type != "function" or call.function is None:
            raise unsupported(
                f"{path}.tool_calls[{index}]", "Only function calls are supported.", "Send type 'function'."
            )
        calls.append(ToolCall(id=call.id, name=call.function.name, arguments_json=call.function.arguments))
    if param.function_call is not None:
        legacy = param.function_call
        calls.append(ToolCall(id=f"call_{position}", name=legacy.name, arguments_json=legacy.arguments))
    return calls


def _legacy_call_id(param: MessageParam, path: str, before: list[Message]) -> str:
    """The call that a `function` message answers: the latest of that name."""
    if not param.name:
        raise missing(f"{path}.name")
    for message in reversed(before):
        for call in message.tool_calls:
            if call.name == param.name:
                return call.id
    raise BadRequest(f"'{path}' answers a call of '{param.name}' that is not in 'messages'.", path, "invalid_value")


# Tools ------------------------------------------------------------------------------------------


def _tools(body: Body) -> list[Tool]:
    if body.tools and body.functions:
        raise BadRequest("Send 'tools' or the older 'functions', not both.", "functions", "invalid_value")
    if body.functions:
        named = [(function, f"functions[{i}]") for i, function in enumerate(body.functions)]
    else:
        named = [(_function(tool, f"tools[{i}]"), f"tools[{i}].function") for i, tool in enumerate(body.tools or [])]
    seen: set[str] = set()
    for function, path in named:
        if function.name in seen:
            raise BadRequest(f"Two tools are named '{function.name}'.", f"{path}.name", "invalid_value")
        seen.add(function.name)
    return [
        Tool(
            name=function.name,
            description=function.description or "",
            parameters=function.parameters if function.parameters is not None else {"type": "object", "properties": {}},
            strict=bool(function.strict),
        )
        for function, _ in named
    ]


def _function(tool: ToolParam, path: str) -> FunctionParam:
    if tool.type != "function":
        raise unsupported(f"{path}.type", f"Tools of type '{tool.type}' are not supported.", "Use type 'function'.")
    if tool.function is None:
        raise missing(f"{path}.function")
    return tool.function


def _tool_choice(body: Body, names: list[str]) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False and not body.functions
    choice: str | ToolChoiceParam | NamedFunction | None = body.tool_choice
    param = "tool_choice"
    if body.function_call is not None:
        choice, param = body.function_call, "function_call"
    if choice is None:
        return ToolChoice(mode="auto", parallel=parallel)
    if not names and choice not in ("none", "auto"):
        raise BadRequest(f"'{param}' is only allowed when tools are given.", param, "invalid_value")
    if isinstance(choice, str):
        check_one_of(choice, ("none", "auto") if body.functions else ("none", "auto", "required"), param)
        mode: Literal["none", "required", "auto"] = (
            "none" if choice == "none" else "required" if choice == "required" else "auto"
        )
        return ToolChoice(mode=mode, parallel=parallel)
    if isinstance(choice, NamedFunction):
        return _named(choice, names, "function_call.name", parallel)
    return _structured_choice(choice, names, parallel)


def _structured_choice(choice: ToolChoiceParam, names: list[str], parallel: bool) -> ToolChoice:
    check_one_of(choice.type, ("function", "allowed_tools"), "tool_choice.type")
    if choice.type == "function":
        if choice.function is None:
            raise missing("tool_choice.function")
        return _named(choice.function, names, "tool_choice.function.name", parallel)
    if choice.allowed_tools is None:
        raise missing("tool_choice.allowed_tools")
    check_one_of(choice.allowed_tools.mode, ("auto", "required"), "tool_choice.allowed_tools.mode")
    allowed = []
    for index, tool in enumerate(choice.allowed_tools.tools):
        path = f"tool_choice.allowed_tools.tools[{index}]"
        if tool.function is None:
            raise missing(f"{path}.function")
        allowed += _named(tool.function, names, f"{path}.function.name", parallel).names
    if not allowed:
        raise BadRequest("No tool is allowed.", "tool_choice.allowed_tools.tools", "invalid_value")
    if choice.allowed_tools.mode == "required":
        return ToolChoice(mode="required", names=allowed, parallel=parallel)
    return ToolChoice(mode="allowed", names=allowed, parallel=parallel)


def _named(function: NamedFunction, names: list[str], param: str, parallel: bool) -> ToolChoice:
    if function.name not in names:
        raise BadRequest(f"'{param}' names '{function.name}', which is not among the tools.", param, "invalid_value")
    return ToolChoice(mode="named", names=[function.name], parallel=parallel)


# Constraints ------------------------------------------------------------------------------------


def _constraint(body: Body) -> Constraint | None:
    found = [
        (name, constraint)
        for name, constraint in (
            ("response_format", _from_format(body.response_format)),
            ("guided_json", _json_schema(body.guided_json)),
            ("guided_regex", Constraint("regex", body.guided_regex) if body.guided_regex else None),
            ("guided_grammar", Constraint("grammar", body.guided_grammar) if body.guided_grammar else None),
        )
        if constraint is not None
    ]
    if len(found) > 1:
        raise BadRequest(
            f"'{found[0][0]}' and '{found[1][0]}' both constrain the answer; send one.", found[1][0], "invalid_value"
        )
    return found[0][1] if found else None


def _from_format(wanted: ResponseFormat | None) -> Constraint | None:
    if wanted is None or wanted.type == "text":
        return None
    check_one_of(wanted.type, ("text", "json_object", "json_schema"), "response_format.type")
    if wanted.type == "json_object":
        return Constraint("json_object")
    if wanted.json_schema is None:
        raise missing("response_format.json_schema")
    if wanted.json_schema.schema is None:
        raise missing("response_format.json_schema.schema")
    return _json_schema(wanted.json_schema.schema)


def _json_schema(schema: str | dict[str, object] | None) -> Constraint | None:
    if not schema:
        return None if schema is None else Constraint("json_object")
    return Constraint("json_schema", schema if isinstance(schema, str) else orjson.dumps(schema).decode())
