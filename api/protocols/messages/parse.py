"""Messages body to the one internal request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from api.protocols.decoding import check_one_of, decode
from api.protocols.errors import BadRequest, missing, unsupported
from api.protocols.media import tool_returned
from api.protocols.messages import schema
from api.protocols.request import Constraint, GenerationRequest, Message, Sampling, Tool, ToolCall, ToolChoice
from api.protocols.thinking import LEVELS

MIN_THINKING_BUDGET = 1024
EFFORTS = ("low", "medium", "high", "xhigh", "max")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@dataclass(slots=True)
class Parsed:
    request: GenerationRequest
    shows_thinking: bool

    @property
    def requests(self) -> list[GenerationRequest]:
        return [self.request]


def parse(body: bytes) -> Parsed:
    wire = decode(schema.BODY, body)
    request = _prompt(wire)
    request.stream = bool(wire.stream)
    request.max_tokens = wire.max_tokens
    request.stop = _stop_sequences(wire.stop_sequences)
    request.sampling = Sampling(temperature=wire.temperature, top_p=wire.top_p, top_k=wire.top_k)
    request.end_user = wire.metadata.user_id if wire.metadata else None
    if wire.thinking and wire.thinking.budget_tokens is not None and wire.thinking.budget_tokens >= wire.max_tokens:
        raise BadRequest(
            f"'thinking.budget_tokens' ({wire.thinking.budget_tokens}) must be below 'max_tokens' ({wire.max_tokens}).",
            "thinking.budget_tokens",
            "invalid_value",
        )
    return Parsed(request, shows_thinking=not (wire.thinking and wire.thinking.display == "omitted"))


def parse_count(body: bytes) -> GenerationRequest:
    return _prompt(decode(schema.COUNT_BODY, body))


def _prompt(wire: schema.CountBody) -> GenerationRequest:
    """All that shapes the prompt, so that a count equals the real call's prompt tokens."""
    tools, choice = _tools(wire)
    messages = _conversation(wire)
    return GenerationRequest(
        model=wire.model,
        stream=False,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        template_options=_template_options(wire),
        continue_final_message=messages[-1].role == "assistant",
        constraint=_constraint(wire),
    )


# The conversation ------------------------------------------------------------------------------------------------


def _conversation(wire: schema.CountBody) -> list[Message]:
    messages: list[Message] = []
    if wire.system:
        messages.append(Message("system", _text(wire.system, "system")))
    if not wire.messages:
        raise BadRequest("'messages' must hold at least one message.", "messages", "invalid_value")
    tool_names: dict[str, str] = {}
    for index, turn in enumerate(wire.messages):
        path = f"messages[{index}]"
        check_one_of(turn.role, ("user", "assistant", "system"), f"{path}.role")
        if turn.role == "assistant":
            _append(messages, _assistant(turn, path, tool_names))
        elif turn.role == "system":
            _append(messages, Message("system", _text(turn.content, f"{path}.content")))
        else:
            for message in _user(turn, path, tool_names):
                _append(messages, message)
    if messages[-1].tool_calls:
        raise BadRequest(
            f"The last message calls tools; a user message with a 'tool_result' for each must follow {path}.",
            path,
            "invalid_value",
        )
    return messages


def _append(messages: list[Message], message: Message) -> None:
    """Add a message; consecutive ones of the same role are one turn."""
    last = messages[-1] if messages else None
    if last is None or last.role != message.role or message.role == "tool":
        messages.append(message)
        return
    last.content = _join(last.content, message.content)
    last.reasoning = _join(last.reasoning, message.reasoning)
    last.tool_calls += message.tool_calls


def _join(first: str | None, second: str | None) -> str | None:
    return f"{first}\n{second}" if first and second else first or second


def _user(turn: schema.Turn, path: str, tool_names: dict[str, str]) -> list[Message]:
    if isinstance(turn.content, str):
        if not turn.content:
            raise BadRequest(f"'{path}.content' must not be empty.", f"{path}.content", "invalid_value")
        return [Message("user", turn.content)]
    if not turn.content:
        raise BadRequest(f"'{path}.content' must hold at least one block.", f"{path}.content", "invalid_value")
    results: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(turn.content):
        where = f"{path}.content[{index}]"
        if block.type == "tool_result":
            results.append(_tool_result(block, where, tool_names))
        else:
            text = _block_text(block, where)
            if not text:
                raise BadRequest(f"'{where}.text' must not be empty.", f"{where}.text", "invalid_value")
            texts.append(text)
    # The results answer the assistant turn before, so they stand before the user's own words.
    return [*results, Message("user", "\n".join(texts))] if texts else results


def _tool_result(block: schema.Block, path: str, tool_names: dict[str, str]) -> Message:
    if not block.tool_use_id:
        raise missing(f"{path}.tool_use_id")
    text = _result_text(block.content or "", f"{path}.content")
    if block.is_error:
        text = f"Error: {text}" if text else "Error"
    return Message("tool", text, tool_call_id=block.tool_use_id, name=tool_names.get(block.tool_use_id))


def _result_text(content: str | list[schema.Block], path: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        tool_returned(f"{'an' if block.type == 'image' else 'a'} {block.type}")
        if _is_media(block)
        else _block_text(block, f"{path}[{index}]")
        for index, block in enumerate(content)
    )


def _is_media(block: schema.Block) -> bool:
    source = block.source
    is_file = isinstance(source, schema.Source) and source.type not in ("text", "content")
    return block.type == "image" or (block.type == "document" and is_file)


def _assistant(turn: schema.Turn, path: str, tool_names: dict[str, str]) -> Message:
    if isinstance(turn.content, str):
        return Message("assistant", turn.content)
    message = Message("assistant", None)
    for index, block in enumerate(turn.content):
        where = f"{path}.content[{index}]"
        if block.type == "thinking":
            message.reasoning = _join(message.reasoning, block.thinking)
        elif block.type == "redacted_thinking":
            continue  # nobody but its maker can read it
        elif block.type == "tool_use":
            if not block.id:
                raise missing(f"{where}.id")
            if not block.name:
                raise missing(f"{where}.name")
            tool_names[block.id] = block.name
            arguments = orjson.dumps(block.input or {}).decode()
            message.tool_calls.append(ToolCall(block.id, block.name, arguments))
        else:
            message.content = _join(message.content, _block_text(block, where))
    if message.content is None and not message.tool_calls:
        message.content = ""
    return message


def _text(content: str | list[schema.Block], path: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(block, f"{path}[{index}]") for index, block in enumerate(content))


def _block_text(block: schema.Block, path: str) -> str:
    if block.type == "text":
        if block.text is None:
            raise missing(f"{path}.text")
        return block.text
    if _is_media(block):
        # Named as the API itself names it: by this path clients find the block, take it out and go on.
        path = f"{path}.{block.type}"
        what, remedy = ("an image", "") if block.type == "image" else ("a document", "Send it as a 'text' source.")
        raise unsupported(path, f"'{path}' is {what}, and this model reads text only.", remedy)
    if block.type == "document":
        return _document_text(block, path)
    if block.type == "tool_reference":
        # What a client's tool search found. Every tool is shown to the model, deferred ones too.
        return f"The tool '{block.tool_name}' can be called."
    if block.type == "search_result":
        source = block.source if isinstance(block.source, str) else ""
        return "\n".join(part for part in (block.title, source, _text(block.content or "", f"{path}.content")) if part)
    raise unsupported(
        f"{path}.type",
        f"'{path}' is a block of type '{block.type}', which is not served.",
        "Use text, thinking, tool_use, tool_result, or a document with a text source.",
    )


def _document_text(block: schema.Block, path: str) -> str:
    source = block.source
    if not isinstance(source, schema.Source):
        raise missing(f"{path}.source")
    text = source.data if source.type == "text" else _text(source.content or "", f"{path}.source.content")
    if text is None:
        raise missing(f"{path}.source.data")
    return "\n".join(part for part in (block.title, block.context, text) if part)


# Tools and options -----------------------------------------------------------------------------------------------


def _tools(wire: schema.CountBody) -> tuple[list[Tool], ToolChoice]:
    choice = wire.tool_choice
    if choice:
        check_one_of(choice.type, ("auto", "any", "tool", "none"), "tool_choice.type")
    if choice and choice.type == "none":
        # Nothing can be called, so tools that we do not serve are harmless.
        tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(wire.tools or ()) if _is_client_tool(tool)]
        return tools, ToolChoice("none")
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(wire.tools or ())]
    names = [tool.name for tool in tools]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRequest(f"Tool names must be unique; '{twice}' occurs twice.", "tools", "invalid_value")
    if not choice:
        return tools, ToolChoice()
    is_parallel = not choice.disable_parallel_tool_use
    if choice.type == "auto":
        return tools, ToolChoice("auto", parallel=is_parallel)
    if not tools:
        raise BadRequest("'tool_choice' asks for a call, but 'tools' is empty.", "tool_choice", "invalid_value")
    if choice.type == "any":
        return tools, ToolChoice("required", parallel=is_parallel)
    if not choice.name:
        raise missing("tool_choice.name")
    if choice.name not in names:
        raise BadRequest(
            f"'tool_choice.name' is '{choice.name}', which is not in 'tools'.", "tool_choice.name", "invalid_value"
        )
    return tools, ToolChoice("named", [choice.name], parallel=is_parallel)


def _is_client_tool(tool: schema.ToolParam) -> bool:
    return tool.type in (None, "custom")


def _tool(tool: schema.ToolParam, path: str) -> Tool:
    if not _is_client_tool(tool):
        raise unsupported(
            f"{path}.type",
            f"'{path}' is the server tool '{tool.type}', which is not served.",
            "Declare a tool of your own with 'input_schema'.",
        )
    if not TOOL_NAME.fullmatch(tool.name):
        raise BadRequest(
            f"'{path}.name' must be 1 to 128 letters, digits, '_' or '-'; got '{tool.name}'.",
            f"{path}.name",
            "invalid_value",
        )
    if tool.input_schema is None:
        raise missing(f"{path}.input_schema")
    if tool.input_schema.get("type", "object") != "object":
        raise BadRequest(f"'{path}.input_schema.type' must be 'object'.", f"{path}.input_schema.type", "invalid_value")
    return Tool(tool.name, tool.description or "", tool.input_schema, bool(tool.strict))


def _template_options(wire: schema.CountBody) -> dict[str, Any]:
    """Thinking is off unless asked for, as this API's clients expect."""
    options: dict[str, Any] = {"enable_thinking": False}
    if wire.thinking:
        check_one_of(wire.thinking.type, ("enabled", "adaptive", "between_tools", "disabled"), "thinking.type")
        if wire.thinking.type == "enabled":
            if wire.thinking.budget_tokens is None:
                raise missing("thinking.budget_tokens")
            if wire.thinking.budget_tokens < MIN_THINKING_BUDGET:
                raise BadRequest(
                    f"'thinking.budget_tokens' must be at least {MIN_THINKING_BUDGET}.",
                    "thinking.budget_tokens",
                    "invalid_value",
                )
        options["enable_thinking"] = wire.thinking.type != "disabled"
    if wire.output_config and wire.output_config.effort is not None:
        check_one_of(wire.output_config.effort, EFFORTS, "output_config.effort")
        if options["enable_thinking"]:
            options["reasoning_effort"] = LEVELS[wire.output_config.effort]
    return options


def _constraint(wire: schema.CountBody) -> Constraint | None:
    # `output_format` is the beta's older name of `output_config.format`.
    output_format, path = wire.output_format, "output_format"
    if wire.output_config and wire.output_config.format:
        output_format, path = wire.output_config.format, "output_config.format"
    if output_format is None:
        return None
    check_one_of(output_format.type, ("json_schema",), f"{path}.type")
    if output_format.schema is None:
        raise missing(f"{path}.schema")
    return Constraint("json_schema", orjson.dumps(output_format.schema).decode())


def _stop_sequences(sequences: list[str] | None) -> list[str]:
    for index, text in enumerate(sequences or ()):
        if not text.strip():
            raise BadRequest(
                f"'stop_sequences[{index}]' must hold something other than white space.",
                f"stop_sequences[{index}]",
                "invalid_value",
            )
    return list(sequences or ())
