"""Tool calls and reasoning are found in generated text, whatever the chunks; what only looks like a tag is not lost."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.core.request import Tool, ToolChoice
from inference_grpc.text.families import Family
from inference_grpc.text.output_parser import ToolArgumentsPiece, ToolStartPiece, make_parser
from tests.inference_grpc.text_output.parsing import PING, TOOLS, WEATHER, Message, parse

THINKING_PROMPT = "<|im_start|>assistant\n<think>\n"
FAMILIES: list[Family] = ["qwen3", "hermes", "chatml"]


def qwen_call(name: str, /, **parameters: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def hermes_call(name: str, arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


# -- qwen3 -----------------------------------------------------------------------------------------------------------


def test_a_qwen_call_is_typed_by_its_schema():
    message = parse(
        qwen_call("get_weather", city="12", days="3", metric="true", where='{"lat": 1.50}', note="null", tags='["a"]')
    )
    assert message.text == ""
    (call,) = message.calls
    assert call.name == "get_weather"
    assert call.arguments == {
        "city": "12", "days": 3, "metric": True, "where": {"lat": 1.5}, "note": None, "tags": ["a"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "read"),
    [("True", True), ("False", False), ("yes", "yes"), ("NaN", "NaN"), ("1e3", 1000.0), ("[1", "[1"), ("", "")],
)
def test_a_value_that_is_not_of_its_type_is_kept_as_text_or_as_the_json_it_is(value, read):
    assert parse(qwen_call("get_weather", metric=value)).calls[0].arguments == {"metric": read}


def test_text_before_and_after_calls_is_kept_and_the_space_around_them_is_not():
    call = qwen_call("ping")
    message = parse(f"Let me see.\n\n{call}\n{call}\n\nDone. ")
    assert message.text == "Let me see.Done. "
    assert [c.name for c in message.calls] == ["ping", "ping"]
    assert [c.arguments for c in message.calls] == [{}, {}]
    assert len({c.id for c in message.calls}) == 2


def test_string_values_keep_their_lines_quotes_and_tags():
    content = '  line "one"\n\n\tif a < b: </parameter> c </para\n<tool_call>\\'
    message = parse(qwen_call("write_file", path="é.txt", content=content))
    assert message.calls[0].arguments == {"path": "é.txt", "content": content}
    assert message.text == ""


def test_string_values_are_streamed():
    parser = make_parser("qwen3", TOOLS, ToolChoice(), False, "")
    parser.feed("<tool_call>\n<function=write_file>\n<parameter=content>\n")
    assert parser.feed("first line") == [ToolArgumentsPiece("first line")]
    assert parser.feed(' "two"\n') == [ToolArgumentsPiece(' \\"two\\"')]
    assert parser.feed("x") == [ToolArgumentsPiece("\\nx")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=ping",
        "<tool_call>\nfunction=ping>",
        "The tag <tool_call> starts a call.",
        "a < b and <tool",
        "<function=ping></function>",
        "<tool_call><tool_call>",
        " \n",
    ],
)
def test_what_only_looks_like_a_qwen_call_is_text(text):
    message = parse(text)
    assert message.calls == []
    assert message.text == text


def test_forgotten_closing_tags_are_forgiven():
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</tool_call>"
    assert parse(text).calls[0].arguments == {"city": "Oslo"}
    assert parse("<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>").calls[0].arguments == {
        "city": "Oslo"
    }
    assert parse("<tool_call><function=ping></function>").calls[0].arguments == {}


def test_a_call_that_breaks_off_stays_valid_json_and_its_rest_is_text():
    message = parse("<tool_call><function=get_weather><parameter=city>Oslo</parameter> </function> and so on")
    assert message.calls[0].arguments == {"city": "Oslo"}
    assert message.text == "and so on"


def test_of_two_values_under_one_name_the_first_stands():
    values = "<parameter=city>A</parameter><parameter=city>B</parameter>"
    text = f"<tool_call><function=get_weather>{values}</function></tool_call>"
    assert parse(text).calls[0].arguments_json == '{"city":"A"}'


def test_a_value_of_an_unknown_parameter_is_json_if_it_can_be_read_so():
    assert parse(qwen_call("ping", a="1", b="one")).calls[0].arguments == {"a": 1, "b": "one"}


def test_types_come_through_references_and_unions():
    tool = Tool(
        "f",
        "",
        {
            "type": "object",
            "$defs": {"name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}},
            "properties": {
                "name": {"$ref": "#/$defs/name"},
                "kind": {"enum": ["1", "2"]},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "loop": {"$ref": "#/$defs/loop"},
            },
        },
    )
    message = parse(qwen_call("f", name="1", kind="2", maybe="3", loop="4"), tools=[tool])
    assert message.calls[0].arguments == {"name": "1", "kind": "2", "maybe": 3, "loop": 4}


# -- hermes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["hermes", "chatml"])
def test_a_hermes_call_is_read(family):
    arguments = {"city": 'Zü"rich\n', "days": -1.5e3, "where": {"a": [1, {}, []], "b": None}}
    message = parse("Well:\n" + hermes_call("get_weather", arguments), family=family)
    assert message.text == "Well:"
    assert message.calls[0].name == "get_weather"
    assert message.calls[0].arguments == arguments


def test_hermes_arguments_are_streamed():
    parser = make_parser("hermes", TOOLS, ToolChoice(), False, "")
    assert parser.feed('<tool_call>{"name": "get_weather", "arguments": ') == []
    start, arguments = parser.feed('{"city": "Os')
    assert isinstance(start, ToolStartPiece)
    assert arguments == ToolArgumentsPiece('{"city":"Os')
    assert parser.feed('lo", "days": 1') == [ToolArgumentsPiece('lo","days":')]
    assert parser.feed("2}") == [ToolArgumentsPiece("12}")]


def test_start_piece_comes_as_soon_as_the_arguments_begin():
    parser = make_parser("hermes", TOOLS, ToolChoice(), False, "")
    (start, _) = parser.feed('<tool_call>{"name": "get_weather", "arguments": {')
    assert re.fullmatch(r"call_[0-9a-f]{24}", start.id)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "ping"}', {"a": 1}),
        ('{"name": "ping"}', {}),
        ('{"name": "ping", "arguments": null}', {}),
        ('{"name": "ping", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"name": "ping", "parameters": {"a": 1}}', {"a": 1}),
        ('{"id": 7, "name": "ping", "arguments": {"a": 1}}', {"a": 1}),
        ('{"name": "ping", "arguments": {"a": True, "b": None,}}', {"a": True, "b": None}),
        ('{"name": "ping", "arguments": {"a": "x\ny\\d"}}', {"a": "x\ny\\d"}),
        ('{"name": "ping", "arguments": {"a": "</tool_call>"}}', {"a": "</tool_call>"}),
        ('{"name": "ping", "arguments": {"a": "\\ud800"}}', {"a": "\ud800"}),
    ],
)
def test_other_forms_of_a_hermes_call_are_read(body, arguments):
    message = parse(f"<tool_call>\n{body}\n</tool_call>", family="hermes")
    assert message.text == ""
    assert message.calls[0].arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "ping", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "ping" "arguments": {}}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
        "<tool_call>[1]</tool_call>",
        "<tool_call>call the tool</tool_call>",
        '<tool_call>{"name": "pi',
        "Use <tool_call> and </tool_call>.",
    ],
)
def test_what_only_looks_like_a_hermes_call_is_text(text):
    message = parse(text, family="hermes")
    assert message.calls == []
    assert message.text == text


def test_broken_arguments_are_closed_and_the_rest_is_text():
    message = parse('<tool_call>{"name": "ping", "arguments": {"a": [1, oops]}}</tool_call>', family="hermes")
    assert message.calls[0].arguments == {"a": [1]}
    assert message.text == "oops]}}</tool_call>"


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "x', '{"a": "x"', '{"a', '{"a"', '{"a":', '{"a": 1', '{"a": [1, 2', '{"a": tr', "{", '{"a": 1,'],
)
def test_arguments_cut_by_the_end_are_closed_but_not_if_a_limit_cut_them(arguments):
    text = '<tool_call>{"name": "ping", "arguments": ' + arguments
    assert isinstance(parse(text, family="hermes").calls[0].arguments, dict)
    cut = parse(text, family="hermes", is_truncated=True).calls[0].arguments_json
    with pytest.raises(ValueError):  # noqa: PT011 (JSONDecodeError is one)
        json.loads(cut)


def test_a_qwen_call_cut_by_a_limit_is_left_open():
    text = "<tool_call><function=write_file><parameter=content>rm -rf /tmp"
    assert parse(text).calls[0].arguments == {"content": "rm -rf /tmp"}
    assert parse(text, is_truncated=True).calls[0].arguments_json == '{"content":"rm -rf /tmp'


# -- choice of tools -------------------------------------------------------------------------------------------------


def test_no_parser_where_there_is_nothing_to_parse():
    assert make_parser("qwen3", [], ToolChoice(), False, "assistant\n") is None
    assert make_parser("qwen3", TOOLS, ToolChoice(mode="none"), False, "assistant\n") is None
    assert make_parser("qwen3", [], ToolChoice(), True, "<think>\n\n</think>\n\n") is None


def test_a_tool_outside_the_choice_is_not_called():
    text = hermes_call("ping", {})
    assert parse(text, family="hermes", choice=ToolChoice(mode="allowed", names=["get_weather"])).text == text


def test_without_parallel_calls_the_output_is_over_after_one():
    parser = make_parser("hermes", TOOLS, ToolChoice(parallel=False), False, "")
    pieces = parser.feed(hermes_call("ping", {}) + hermes_call("ping", {}))
    assert sum(isinstance(piece, ToolStartPiece) for piece in pieces) == 1
    assert parser.is_complete
    assert parser.finish() == []


# -- reasoning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_reasoning_opened_by_the_prompt_is_split_off(family):
    message = parse("I think.\n\nSo.\n</think>\n\nYes. ", family=family, tools=[], prompt_suffix=THINKING_PROMPT)
    assert message == Message(text="Yes. ", reasoning="I think.\n\nSo.")


def test_reasoning_opened_by_the_model_is_split_off_only_at_the_start():
    assert parse("\n<think>\nhm\n</think>\nYes", tools=[], thinking=True) == Message("Yes", "hm")
    assert parse("Yes <think>hm</think>", tools=[], thinking=True) == Message("Yes <think>hm</think>")
    assert parse("<thin air>", tools=[], thinking=True) == Message("<thin air>")


def test_reasoning_then_a_call():
    message = parse("hm\n</think>\n\n" + qwen_call("ping"), prompt_suffix=THINKING_PROMPT)
    assert message.reasoning == "hm"
    assert message.text == ""
    assert message.calls[0].name == "ping"


@pytest.mark.parametrize("behind", ["", "\n", "\n</think>\n\n"])
def test_a_call_inside_reasoning_ends_it(behind):
    message = parse(f"I will ask.\n{qwen_call('ping')}{behind}Done.", prompt_suffix=THINKING_PROMPT)
    assert (message.reasoning, message.text) == ("I will ask.", "Done.")
    assert [call.name for call in message.calls] == ["ping"]


@pytest.mark.parametrize("named", ["<tool_call> tags", "<tool_call>\n<function=unknown>\n</function>\n</tool_call> is"])
def test_a_call_that_reasoning_only_talks_of_is_reasoning(named):
    thought = f"There are {named} here."
    assert parse(f"{thought}\n</think>\n\nYes", prompt_suffix=THINKING_PROMPT) == Message("Yes", thought)
    assert parse(f"{thought}</thi", prompt_suffix=THINKING_PROMPT) == Message(reasoning=f"{thought}</thi")


def test_one_call_inside_reasoning_is_all_where_calls_are_not_parallel():
    message = parse(
        f"hm {qwen_call('ping')}\n{qwen_call('ping')}", choice=ToolChoice(parallel=False), prompt_suffix=THINKING_PROMPT
    )
    assert (message.reasoning, message.text, len(message.calls)) == ("hm", "", 1)


@pytest.mark.parametrize("tools", [[], TOOLS])
def test_a_second_end_of_reasoning_is_dropped(tools):
    for text, answer in (
        ("hm</think>\n</think>\n\nYes", "Yes"),
        ("hm</think></think></think>Yes </think>", "Yes </think>"),
        ("hm</think>\n</thin air", "</thin air"),
        ("hm</think></thi", "</thi"),
    ):
        assert parse(text, tools=tools, prompt_suffix=THINKING_PROMPT) == Message(answer, "hm")


def test_unfinished_reasoning_stays_reasoning():
    assert parse("hm </thi", tools=[], prompt_suffix=THINKING_PROMPT) == Message(reasoning="hm </thi")


def test_tokens_of_reasoning_can_be_told_from_those_of_the_answer():
    parser = make_parser("qwen3", [], ToolChoice(), True, THINKING_PROMPT)
    assert parser.in_reasoning
    parser.feed("hm </thi")
    assert parser.in_reasoning
    parser.feed("nk>")
    assert not parser.in_reasoning


# -- properties ------------------------------------------------------------------------------------------------------

FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=ping>", "<function=get_weather>", "<function=no>", "</function>",
        "<parameter=city>", "<parameter=days>", "<parameter=note>", "<parameter=other>", "</parameter>", "<think>",
        "</think>", '{"name": "ping", "arguments": ', '{"name": "get_weather", "arguments": {"city": "', "{", "}", '"',
        '"city": ', ":", ",", "[", "]", "12", "true", "-", "\\", "\\u12", "\\n", "\n", " ", "<", "</", ">", "é", "\x01",
        '{"arguments": {}, "name": "ping"}', "\x00", "😀", "nul", "1e",
    ]
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(FRAGMENTS, max_size=25).map("".join),
    st.text(max_size=60),
    st.builds(lambda parts, seed: qwen_call("get_weather", **parts) + seed, st.dictionaries(
        st.sampled_from(list(WEATHER.parameters["properties"])), st.text(max_size=20)), st.text(max_size=5)),
    st.builds(lambda value: hermes_call("ping", {"a": value}), st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8)),
)  # fmt: skip


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@settings(max_examples=600, deadline=None)
@given(
    text=TEXTS,
    places=st.lists(st.integers(0, 10_000), max_size=12),
    family=st.sampled_from(["qwen3", "hermes"]),
    thinking=st.sampled_from(["none", "optional", "open"]),
    parallel=st.booleans(),
    is_truncated=st.booleans(),
)
def test_any_split_gives_the_same_message_and_valid_calls(text, places, family, thinking, parallel, is_truncated):
    def read(chunks: list[str]) -> Message:
        return parse(
            chunks,
            family=family,
            choice=ToolChoice(parallel=parallel),
            thinking=thinking == "optional",
            prompt_suffix=THINKING_PROMPT if thinking == "open" else "",
            is_truncated=is_truncated,
        )

    whole = read([text])
    assert read(cut(text, places)) == whole
    assert read(list(text)) == whole
    calls = whole.calls[:-1] if is_truncated else whole.calls
    for call in calls:
        assert isinstance(call.arguments, dict)
        call.arguments_json.encode()
    if not parallel:
        assert len(whole.calls) <= 1


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_text_without_tags_passes_unchanged(text):
    if "<" not in text:
        assert parse(list(text), tools=[PING]) == Message(text)


@settings(max_examples=200, deadline=None)
@given(city=st.text(max_size=40), content=st.text(max_size=40))
def test_string_arguments_survive_the_round_trip(city, content):
    for text in (hermes_call("write_file", {"path": city, "content": content}),):
        assert parse(list(text), family="hermes").calls[0].arguments == {"path": city, "content": content}
    if "</parameter>" not in city + content:
        text = qwen_call("write_file", path=city, content=content)
        assert parse(list(text)).calls[0].arguments == {"path": city, "content": content}
