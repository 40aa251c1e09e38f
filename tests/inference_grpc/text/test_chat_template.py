"""Chat templates see what they expect, in a sandbox, and their refusals reach the caller."""

from __future__ import annotations

import json

import pytest

from inference_grpc.core.request import ChatPrompt, Message, Tool, ToolCall
from inference_grpc.errors import InvalidRequest
from inference_grpc.text.chat_template import ChatTemplate
from tests.inference_grpc.tiny_model import CHATML


def render(source: str, *messages: Message, **prompt: object) -> str:
    special_tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(source, special_tokens).render(ChatPrompt(list(messages), **prompt))  # type: ignore[arg-type]


ADA = Message("user", "Hi <b> & 'you'")


def test_chatml_ends_where_the_model_goes_on() -> None:
    assert render(CHATML, ADA) == "<|im_start|>user\nHi <b> & 'you'<|im_end|>\n<|im_start|>assistant\n"


def test_a_final_message_is_continued_inside() -> None:
    text = render(CHATML, ADA, Message("assistant", "Hello, I"), continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nHello, I")
    with pytest.raises(InvalidRequest, match="no content to continue"):
        render(CHATML, ADA, Message("assistant", None), continue_final_message=True)


def test_templates_find_tools_calls_options_and_special_tokens() -> None:
    call = ToolCall("c1", "weather", '{"city": "Zürich"}')
    text = render(
        "{# knows <tool_call> #}{{ bos_token }}{{ tools | tojson }}|"
        "{{ messages[0].tool_calls[0].function.arguments.city }}|"
        "{{ messages[0].content }}|{{ messages[1].tool_call_id }}|{{ messages[0].reasoning_content }}|{{ depth }}",
        Message("assistant", None, reasoning="hm", tool_calls=[call]),
        Message("tool", "12 °C", tool_call_id="c1"),
        tools=[Tool("weather", "Says <it>", {"type": "object"})],
        template_options={"depth": 3, "bos_token": "forged"},
    )
    tools, city, content, call_id, reasoning, depth = text.removeprefix("<s>").split("|")
    assert json.loads(tools)[0]["function"] == {
        "name": "weather",
        "description": "Says <it>",
        "parameters": {"type": "object"},
    }
    assert "<it>" in tools
    assert (city, content, call_id, reasoning, depth) == ("Zürich", "", "c1", "hm", "3")


def test_blocks_leave_no_white_space() -> None:
    assert (
        render(
            "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\nend", ADA
        )
        == "user\nend"
    )


def test_loop_controls_and_dates_work() -> None:
    assert render("{% for m in messages %}{% break %}{% endfor %}{{ strftime_now('%Y') | length }}", ADA) == "4"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Only user and assistant!') }}", "Only user and assistant!"),
        ("{{ messages[0].content.nothing.more }}", "has no attribute"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].role + 1 }}", "cannot render"),
    ],
)
def test_what_a_template_refuses_or_must_not_do_names_the_messages(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refusal:
        render(source, ADA)
    assert refusal.value.fields["param"] == "messages"


def test_system_turns_in_the_middle_pass_a_template_that_wants_them_first() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "[{{ m.role }}:{{ m.content }}]{% endfor %}"
    )
    messages = [
        Message("system", "a"),
        Message("system", "b"),
        Message("user", "Hi"),
        Message("system", "Now be terse."),
        Message("user", "Go"),
    ]
    assert render(source, *messages) == ("[system:a\n\nb][user:Hi][user:<system>\nNow be terse.\n</system>][user:Go]")
