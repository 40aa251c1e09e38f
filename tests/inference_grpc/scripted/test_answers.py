"""What the scripted engine says: deterministic, within the limits of the request, and valid where it must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from inference_grpc.config import ConfigError
from inference_grpc.core.request import ChatPrompt, Constraint, Message, Request, SamplingParams, Tool, ToolChoice
from inference_grpc.errors import EngineError, InvalidRequest, PromptTooLong, QueueFull, UnsupportedSchema
from inference_grpc.scripted.pattern import string_for
from inference_grpc.scripted.scenario import Scenario, read_scenario
from inference_grpc.scripted.schema import instance_of, read_hints
from inference_grpc.scripted.script import Choice, Script, write_script

ADD = Tool(
    "add",
    "Add two integers",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
WEATHER = Tool("get_weather", "", {"type": "object", "properties": {"location": {"type": "string"}}})


def script(prompt: str | ChatPrompt, scenario: Scenario | None = None, **fields: Any) -> Script:
    return write_script(Request(fields.pop("request_id", "r"), prompt, **fields), scenario or Scenario())


def chat(text: str, *tools: Tool, **fields: Any) -> ChatPrompt:
    return ChatPrompt([Message("user", text)], tools=list(tools), **fields)


def text_of(choice: Choice) -> str:
    return "".join(token.text for token in choice.tokens if token.kind == "text")


def calls_of(choice: Choice) -> list[tuple[str, Any]]:
    """(name, arguments) of each call, as a reader of the fragments would put them together."""
    calls: list[tuple[str, str]] = []
    for token in choice.tokens:
        if token.kind == "call":
            assert token.call is not None
            calls.append((token.call.name, ""))
        elif token.kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + token.text)
    return [(name, json.loads(arguments)) for name, arguments in calls]


def test_a_reply_has_words_and_ends_by_itself() -> None:
    (choice,) = script("hello").choices
    assert len(choice.tokens) >= 3
    assert text_of(choice).split() == [token.text.strip() for token in choice.tokens]
    assert choice.reason == "eos"


def test_greedy_answers_depend_on_the_prompt_alone_and_sampled_ones_on_the_seed() -> None:
    greedy = SamplingParams(temperature=0, seed=1)
    assert script("hi", sampling=greedy).choices == script("hi", sampling=SamplingParams(temperature=0, seed=2)).choices
    assert script("hi", sampling=greedy).choices != script("ho", sampling=greedy).choices
    one, two = SamplingParams(seed=1), SamplingParams(seed=2)
    assert script("hi", sampling=one).choices == script("hi", sampling=one).choices
    assert script("hi", sampling=one).choices != script("hi", sampling=two).choices
    first, second = script("hi", n=2).choices
    assert first != second


def test_max_tokens_and_the_context_cut_the_answer() -> None:
    (choice,) = script("TOKENS:50", max_tokens=8).choices
    assert (len(choice.tokens), choice.reason) == (8, "length")
    (choice,) = script("TOKENS:500", Scenario(context_tokens=100)).choices
    assert (len(choice.tokens), choice.reason) == (99, "context_full")
    with pytest.raises(PromptTooLong) as refused:
        script("five words are in here", Scenario(context_tokens=100), max_tokens=96)
    assert refused.value.fields == {"prompt_tokens": "5", "max_tokens": "96", "context_tokens": "100"}


def test_the_best_book_is_cut_at_eight_tokens() -> None:
    (choice,) = script(chat("What is the best book"), max_tokens=8).choices
    assert "Suddenly" in text_of(choice)
    assert choice.reason == "length"


@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        (["c"], "a b ", 3),
        (["b c"], "a ", 3),
        (["d", " b"], "a", 2),
        (["zz"], "a b c d e", 5),
        (["e"], "a b c d ", 5),
    ],
)
def test_stop_strings_cut_the_text_also_across_tokens(stop: list[str], text: str, tokens: int) -> None:
    (choice,) = script("SAY: a b c d e", stop=stop).choices
    assert text_of(choice) == text
    assert len(choice.tokens) == tokens
    assert choice.matched_stop == (None if stop == ["zz"] else stop[-1])
    assert choice.reason == ("eos" if stop == ["zz"] else "stop_string")


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    (choice,) = script("SAY: a b", max_tokens=5, ignore_eos=True).choices
    assert (text_of(choice), choice.reason) == ("a b a b a", "length")


def test_logprobs_name_the_chosen_token_first() -> None:
    (choice,) = script("SAY: a b", logprobs=True, top_logprobs=3).choices
    for token in choice.tokens:
        assert token.logprobs is not None
        (logprob,) = token.logprobs
        assert logprob.token == logprob.top[0].token == token.text
        assert [top.logprob for top in logprob.top] == sorted((top.logprob for top in logprob.top), reverse=True)
        assert len(logprob.top) == 3


def test_thinking_comes_first() -> None:
    (choice,) = script("THINK: one two SAY: three").choices
    assert [(token.kind, token.text) for token in choice.tokens] == [
        ("reasoning", "one"),
        ("reasoning", " two"),
        ("text", "three"),
    ]
    (choice,) = script(chat("hi", template_options={"enable_thinking": True})).choices
    assert choice.tokens[0].kind == "reasoning"


def test_echo_repeats_the_prompt() -> None:
    assert script("Once upon", echo=True).echo == "Once upon"


MAGIC = Tool("magic_function", "", {"type": "object", "properties": {"input": {"type": "integer"}}})
NO_ARGUMENTS = Tool("magic_function_no_args", "", {"type": "object", "properties": {}})
CUSTOMER = Tool(
    "create_customer",
    "",
    {"type": "object", "properties": {"customer_name": {"type": "string"}, "description": {"type": "string"}}},
)


@pytest.mark.parametrize(
    ("prompt", "choice", "calls"),
    [
        (chat("What is magic_function(3)? Use the tool.", MAGIC), ToolChoice(), [("magic_function", {"input": 3})]),
        (chat("Value of magic_function_no_args()?", NO_ARGUMENTS), ToolChoice(), [("magic_function_no_args", {})]),
        (
            chat("What's the weather in San Francisco, CA?", WEATHER),
            None,
            [("get_weather", {"location": "San Francisco"})],
        ),
        (chat("RUN: add 2 and 3", ADD), ToolChoice("required"), [("add", {"a": 2, "b": 3})]),
        (chat("Say hello.", ADD), ToolChoice("required"), [("add", {"a": 1, "b": 1})]),
        (
            chat("Say hello.", ADD, WEATHER),
            ToolChoice("named", ["get_weather"]),
            [("get_weather", {"location": "location"})],
        ),
        (chat("Say hello.", ADD), ToolChoice(), []),
        (chat("What is magic_function(3)?", MAGIC), ToolChoice("none"), []),
        (chat("use add and get_weather", ADD, WEATHER), ToolChoice(), ["add", "get_weather"]),
        (chat("use add and get_weather", ADD, WEATHER), ToolChoice(parallel=False), ["add"]),
        (chat("use add and get_weather", ADD, WEATHER), ToolChoice("allowed", ["get_weather"]), ["get_weather"]),
        (chat("use add", ADD, WEATHER, MAGIC), ToolChoice("required", ["get_weather"]), ["get_weather"]),
    ],
    ids=lambda value: value.messages[0].content if isinstance(value, ChatPrompt) else "",
)
def test_tools_are_called_as_the_prompt_and_the_choice_say(
    prompt: ChatPrompt, choice: ToolChoice | None, calls: list[Any]
) -> None:
    (answer,) = script(prompt, tool_choice=choice or ToolChoice()).choices
    made = calls_of(answer)
    assert (made if not calls or isinstance(calls[0], tuple) else [name for name, _ in made]) == calls
    assert answer.reason == ("tool_calls" if calls else "eos")


def test_a_call_that_must_be_made_goes_before_the_form_of_an_answer() -> None:
    """instructor sends both, and so does the engine's grammar decide."""
    constraint = Constraint("json_schema", '{"type": "object", "properties": {"c": {"type": "string"}}}')
    (answer,) = script(chat("Add 2 and 3", ADD), tool_choice=ToolChoice("required"), constraint=constraint).choices
    assert calls_of(answer) == [("add", {"a": 2, "b": 3})]


def test_foreign_text_becomes_an_argument_unharmed() -> None:
    prompt = chat("Create a customer named '你好啊集团' (Hello Group) - a Chinese technology company", CUSTOMER)
    (answer,) = script(prompt, tool_choice=ToolChoice("required")).choices
    assert calls_of(answer)[0][1]["customer_name"] == "你好啊集团"


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({"command": {"type": "string"}}, {"command": "ls -l /"}),
        ({"command": {"type": "array", "items": {"type": "string"}}}, {"command": ["bash", "-lc", "ls -l /"]}),
        ({"cmd": {"type": "string"}, "timeout": {"type": "integer"}}, {"cmd": "ls -l /", "timeout": 1}),
    ],
)
def test_run_calls_the_shell_tool_and_its_result_ends_the_turn(
    parameters: dict[str, Any], arguments: dict[str, Any]
) -> None:
    shell = Tool("bash", "", {"type": "object", "properties": parameters, "required": list(parameters)})
    prompt = chat("Please RUN: ls -l /", ADD, shell)
    prompt.messages[0].content = "Please\nRUN: ls -l /"
    (answer,) = script(prompt).choices
    assert calls_of(answer) == [("bash", arguments)]
    prompt.messages.append(Message("tool", "bin etc", tool_call_id="call_1"))
    (answer,) = script(prompt).choices
    assert "bin etc" in text_of(answer)
    assert answer.reason == "eos"


def test_a_tool_choice_that_names_no_tool_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="sub"):
        script(chat("hi", ADD), tool_choice=ToolChoice("named", ["sub"]))


NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    {},
    ADD.parameters,
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
    {"type": "array", "items": {"enum": ["x", "y", "z"]}, "minItems": 3, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"type": "array", "items": ADD.parameters, "minItems": 2, "maxItems": 2},
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    {"type": "object", "properties": {"more": {"type": "array", "items": {"$ref": "#"}}}, "required": ["more"]},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}$"},
    {"type": "string", "pattern": "^(foo|bar)+[^a-z]?\\w*$", "minLength": 10},
    {"type": "string", "minLength": 40, "maxLength": 41},
    {"type": "string", "format": "uuid"},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "integer", "minimum": 7, "multipleOf": 5},
    {"type": "integer", "maximum": -4},
    {"enum": [None, 3]},
    {"const": {"a": [1]}},
    {"type": ["null", "boolean"]},
    {
        "allOf": [
            ADD.parameters | {"additionalProperties": True},
            {"properties": {"c": {"const": 3}}, "required": ["c"]},
        ]
    },
    {"type": "object", "properties": {"k": {"type": "string"}}, "anyOf": [{"required": ["k"]}, {"required": ["l"]}]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": kind}}, "required": ["k"]} for kind in ("a", "b")]},
    {"type": "object", "minProperties": 3, "additionalProperties": {"type": "integer"}},
    {
        "type": "object",
        "patternProperties": {"^k\\d+$": {"type": "boolean"}},
        "minProperties": 2,
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
@pytest.mark.parametrize("prompt", ["hi", "Take 3, -7 and 2.5 for '你好' in New York"])
def test_a_constrained_answer_is_an_instance_of_its_schema(schema: dict[str, Any], prompt: str) -> None:
    (choice,) = script(prompt, constraint=Constraint("json_schema", json.dumps(schema))).choices
    jsonschema.Draft202012Validator(schema).validate(json.loads(text_of(choice)))


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"not": {"type": "string"}}, "not"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#/$defs/nothing"}, "$ref"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "$ref"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "array", "items": {"enum": [1]}, "minItems": 2, "uniqueItems": True}, "uniqueItems"),
    ],
)
def test_what_no_instance_can_be_promised_for_is_refused(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        instance_of(schema, read_hints(""))
    assert refused.value.fields["keyword"] == keyword


def test_a_json_object_has_the_keys_that_the_prompt_asks_for() -> None:
    (choice,) = script("A joke as JSON with setup and punchline.", constraint=Constraint("json_object")).choices
    assert set(json.loads(text_of(choice))) == {"setup", "punchline"}


@pytest.mark.parametrize("pattern", [r"\d{3}-\d{4}", r"(a|b)\1x*", r"[^\W\d]+?", r"(?i:yes|no)", r"^\s\S.$", r"[é-ü]"])
def test_a_string_matches_its_pattern(pattern: str) -> None:
    import re

    assert re.fullmatch(pattern, string_for(pattern))


@pytest.mark.parametrize("order", ["PACE:fast", "PACE:0", "TOKENS:-1", "FAIL:teapot", "FAIL:500@x", "RECEIPT:more"])
def test_an_odd_directive_is_refused_by_name(order: str) -> None:
    with pytest.raises(InvalidRequest, match=order):
        script(order)


def test_numbers_of_http_stand_for_engine_errors() -> None:
    assert script("FAIL:429@3").directives.fail_code == "engine_overloaded"
    with pytest.raises(QueueFull):
        script("REFUSE:429")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"sampling": SamplingParams(temperature=3)}, "temperature"),
        ({"prompt": ChatPrompt([])}, "messages"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(EngineError) as refused:
        script(**({"prompt": "hi"} | fields))
    assert refused.value.fields["param"] == param


def test_a_scenario_gives_orders_by_text_tenant_and_share(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(
        """
        step_ms = 2.0
        directives = "TTFT:20"
        [[rules]]
        when = "weather"
        directives = "CACHED:1 PACE:10"
        [[rules]]
        tenant = "7"
        share = 0.25
        directives = "FAIL:device_fault@2"
        """
    )
    scenario = read_scenario(str(path))
    assert scenario.step_s == 0.002
    orders = script("the weather PACE:20", scenario).directives
    assert (orders.first_token_s, orders.cached_tokens, orders.tokens_per_s, orders.fail_at) == (0.02, 1, 20.0, None)
    failing = {
        tenant: sum(
            script("hi", scenario, request_id=str(number), tenant=tenant).directives.fail_at == 2
            for number in range(400)
        )
        for tenant in ("7", "8")
    }
    assert 70 < failing["7"] < 130
    assert failing["8"] == 0


@pytest.mark.parametrize(
    "content",
    ["step_ms = -1", "pace = 3", "[[rules]]\nshare = 2\ndirectives = 'STALL:1'", "[[rules]]\nwhen = '('", "x ="],
)
def test_a_scenario_that_is_not_understood_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match="ENGINE_SCENARIO"):
        read_scenario(str(path))
