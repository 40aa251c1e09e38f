"""Tools for models whose chat template has no syntax for them: told in the system message, in the hermes style.

The template then sees nothing but system, user and assistant texts:

* the first system message (one is made if there is none) ends in a preamble that lists the tools as JSON, one a line
  between `<tools>` and `</tools>`, and says how to call them;
* an assistant message's calls stand behind its text, each as `<tool_call>` JSON `</tool_call>`;
* a tool's result is a user message, the result between `<tool_response>` and `</tool_response>`; results in a row share
  one message.

docs/engine/structured-output.md describes this for users.
"""

from __future__ import annotations

from dataclasses import replace

from inference_grpc.core.request import Message, Tool, ToolCall, ToolChoice
from inference_grpc.text.families import CALL_CLOSE, CALL_OPEN
from inference_grpc.text.output_parser import offered_tools
from inference_grpc.text.output_parser.values import decode, encode

_PREAMBLE = """\
You can call functions. These are the functions, each with a JSON Schema of its arguments:
<tools>
{tools}
</tools>

To call a function, write its name and arguments as JSON between {call_open} and {call_close}:
{call_open}
{{"name": <function name>, "arguments": <object of arguments>}}
{call_close}
{rule}"""
_RULES = {
    "auto": "Call a function only if it helps to answer; otherwise answer in words.",
    "must": "Answer with a function call and nothing else.",
}
_ONE_CALL = " Make one call at most."


def with_tools(messages: list[Message], tools: list[Tool], tool_choice: ToolChoice) -> list[Message]:
    """`messages` with tools, calls and results written out as text. The messages given are not changed."""
    written: list[Message] = []
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.content or ''}\n</tool_response>"
            if written and written[-1].role == "user" and (written[-1].content or "").endswith("</tool_response>"):
                written[-1].content = f"{written[-1].content}\n{result}"
            else:
                written.append(Message(role="user", content=result))
        elif message.tool_calls:
            texts = [message.content, *map(_call_text, message.tool_calls)]
            written.append(replace(message, content="\n".join(filter(None, texts)), tool_calls=[]))
        else:
            written.append(replace(message))
    offered = offered_tools(tools, tool_choice)
    if not offered:
        return written
    preamble = _preamble(offered, tool_choice)
    if written and written[0].role == "system":
        written[0].content = f"{written[0].content}\n\n{preamble}" if written[0].content else preamble
    else:
        written.insert(0, Message(role="system", content=preamble))
    return written


def _preamble(tools: list[Tool], tool_choice: ToolChoice) -> str:
    rule = _RULES["must" if tool_choice.mode in ("required", "named") else "auto"]
    if not tool_choice.parallel:
        rule += _ONE_CALL
    lines = [
        encode({"name": tool.name, "description": tool.description, "parameters": tool.parameters}) for tool in tools
    ]
    return _PREAMBLE.format(tools="\n".join(lines), call_open=CALL_OPEN, call_close=CALL_CLOSE, rule=rule)


def _call_text(call: ToolCall) -> str:
    try:
        arguments = decode(call.arguments_json)
    except ValueError:
        arguments = call.arguments_json
    body = f'{{"name": {encode(call.name)}, "arguments": {encode(arguments)}}}'
    return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}"
