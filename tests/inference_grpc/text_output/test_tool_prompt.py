"""A model whose template knows no tools is told of them in the system message; its calls come back to it as text."""

from __future__ import annotations

import json
import re

import pytest

from inference_grpc.core.request import ChatPrompt, Message, ToolCall, ToolChoice
from inference_grpc.text.chat_template import ChatTemplate
from inference_grpc.text.families import family_of, reasoning_start, renders_tools
from inference_grpc.text.tool_prompt import with_tools
from tests.inference_grpc.text_output.parsing import PING, TOOLS, parse

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = CHATML + "{% if tools %}<tool_call>\n{% endif %}"
QWEN3 = HERMES + "<function=example>"


def test_the_family_is_read_from_the_template():
    assert [family_of(source) for source in (CHATML, HERMES, QWEN3, "")] == ["chatml", "hermes", "qwen3", "chatml"]
    assert [renders_tools(source) for source in (CHATML, HERMES, QWEN3)] == [False, True, True]


def test_where_reasoning_starts_is_read_from_the_prompt():
    assert reasoning_start(False, "assistant\n<think>\n") == "open"
    assert reasoning_start(True, "assistant\n") == "optional"
    assert reasoning_start(True, "assistant\n<think>\n\n</think>\n\n") == "none"
    assert reasoning_start(False, "assistant\n") == "none"


def test_tools_stand_behind_the_system_text():
    messages = [Message("system", "Be brief."), Message("user", "Hi")]
    written = with_tools(messages, TOOLS, ToolChoice())
    assert written[0].content.startswith("Be brief.\n\n")
    listed = re.search(r"<tools>\n(.*)\n</tools>", written[0].content, re.DOTALL).group(1).split("\n")
    assert [json.loads(line)["name"] for line in listed] == [tool.name for tool in TOOLS]
    assert json.loads(listed[0])["parameters"] == TOOLS[0].parameters
    assert messages[0].content == "Be brief."


def test_a_system_message_is_made_where_there_is_none():
    written = with_tools([Message("user", "Hi")], [PING], ToolChoice())
    assert [message.role for message in written] == ["system", "user"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice(mode="none"), []),
        (ToolChoice(mode="named", names=["ping"]), ["ping"]),
        (ToolChoice(mode="required"), ["get_weather", "write_file", "ping"]),
    ],
)
def test_only_tools_that_may_be_called_are_told(choice, names):
    text = "".join(message.content for message in with_tools([Message("user", "Hi")], TOOLS, choice))
    assert re.findall(r'"name":"(\w+)"', text) == names
    assert ("nothing else" in text) == (choice.mode != "none")


def test_calls_and_results_come_back_as_text_that_parses():
    calls = [ToolCall("1", "get_weather", '{"city": "Zürich"}'), ToolCall("2", "ping", "not json")]
    messages = [
        Message("user", "Hi"),
        Message("assistant", "Let me see.", tool_calls=calls),
        Message("tool", "sunny", tool_call_id="1"),
        Message("tool", None, tool_call_id="2"),
        Message("user", "And?"),
    ]
    written = with_tools(messages, [], ToolChoice())
    assert [message.role for message in written] == ["user", "assistant", "user", "user"]
    again = parse(written[1].content, family="hermes")
    assert again.calls[0].arguments == {"city": "Zürich"}
    assert again.text.startswith("Let me see.")
    assert written[2].content == ("<tool_response>\nsunny\n</tool_response>\n<tool_response>\n\n</tool_response>")
    assert messages[1].tool_calls == calls


def test_the_renderer_uses_it_only_where_the_template_has_no_syntax_of_its_own():
    prompt = ChatPrompt([Message("user", "Hi")], tools=[PING])
    rendered = ChatTemplate(CHATML, {}).render(prompt, ToolChoice())
    assert rendered.startswith("<|im_start|>system\nYou can call functions.")
    assert rendered.endswith("<|im_start|>assistant\n")
    assert "You can call functions." not in ChatTemplate(HERMES, {}).render(prompt, ToolChoice())
