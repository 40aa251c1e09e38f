"""Whatever tokens a model prefers, what the mask lets through is an instance of the schema, and ends."""

from __future__ import annotations

import json
import random
import re
import time

import jsonschema
import pytest
import torch

from inference_grpc.core.request import Constraint, Tool, ToolChoice
from inference_grpc.errors import UnsupportedSchema
from inference_grpc.text import constraint as constraint_module
from inference_grpc.text.constraint import ConstraintCompiler, bitmask_words
from inference_grpc.text.constraint_rules import WHITESPACE
from tests.inference_grpc.text_output.masks import PADDING, ids_of
from tests.inference_grpc.text_output.schemas import SCHEMAS

NONE = ToolChoice()


def compile_schema(compiler: ConstraintCompiler, schema: object, **options):
    return compiler.compile(Constraint("json_schema", json.dumps(schema)), [], NONE, "chatml", **options)


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_tokens_under_the_mask_make_valid_instances(compiler, walk, name):
    compiled = compile_schema(compiler, SCHEMAS[name])
    validator = jsonschema.Draft202012Validator(
        SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for seed in range(4):
        validator.validate(json.loads(walk(compiled, seed)))


def test_json_object_is_an_object(compiler, walk):
    compiled = compiler.compile(Constraint("json_object"), [], NONE, "chatml")
    for seed in range(4):
        assert isinstance(json.loads(walk(compiled, seed)), dict)


@pytest.mark.parametrize("pattern", [r"[a-z]{3}-[0-9]+", r"^(yes|no)$", r"a/b\d", 'say "hi"', r"\p{Lu}é?"])
def test_a_regular_expression_is_matched_as_a_whole(compiler, walk, pattern):
    compiled = compiler.compile(Constraint("regex", pattern), [], NONE, "chatml")
    for seed in range(3):
        text = walk(compiled, seed, free_tokens=8)
        assert re.fullmatch(pattern.replace(r"\p{Lu}", r"[^\W\d_]"), text)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: sum\nsum: NUMBER ("+" NUMBER)*\nNUMBER: /[0-9]+/',
        'root ::= number ("+" number)*\nnumber ::= [0-9]+',
    ],
    ids=["lark", "gbnf"],
)
def test_a_grammar_is_followed(compiler, walk, grammar):
    compiled = compiler.compile(Constraint("grammar", grammar), [], NONE, "chatml")
    assert re.fullmatch(r"[0-9]+(\+[0-9]+)*", walk(compiled, 1, free_tokens=8))


@pytest.mark.parametrize(
    ("kind", "text", "keyword"),
    [
        ("regex", "(", "regex"),
        ("regex", r"a(?=b)", "regex"),
        ("regex", "a" * 70_000, "regex"),
        ("grammar", "start: missing", "grammar"),
        ("grammar", "root ::= (", "grammar"),
        ("grammar", " ", "grammar"),
        ("json_schema", "{", ""),
        ("json_schema", '{"enum": [NaN]}', ""),
        ("json_schema", "[]", ""),
        ("json_schema", "[" * 100_000, ""),
    ],
)
def test_what_cannot_be_read_is_refused(compiler, kind, text, keyword):
    with pytest.raises(UnsupportedSchema) as refusal:
        compiler.compile(Constraint(kind, text), [], NONE, "chatml")
    assert refusal.value.fields["keyword"] in (keyword, "#")


def test_the_end_is_allowed_only_where_the_output_is_complete(compiler, tokenizer, allowed):
    matcher = compile_schema(compiler, {"type": "integer"}).new_matcher()
    eos = tokenizer.eos_ids
    assert not eos & set(allowed(matcher))
    assert not matcher.is_valid()
    matcher.accept(tokenizer.encode("7")[0])
    assert eos <= set(allowed(matcher))
    assert matcher.is_valid()
    assert not matcher.is_done()
    matcher.accept(min(eos))
    assert matcher.is_done()


def test_nothing_but_the_end_is_allowed_once_done(compiler, tokenizer, allowed):
    matcher = compile_schema(compiler, {"const": 1}).new_matcher()
    matcher.accept(tokenizer.encode("1")[0])
    assert matcher.is_done()
    assert set(allowed(matcher)) == set(tokenizer.eos_ids)


def test_control_tokens_and_padding_are_never_allowed(compiler, tokenizer, allowed):
    ids = set(allowed(compiler.compile(Constraint("regex", "(?s:.*)"), [], NONE, "chatml").new_matcher()))
    assert ids & tokenizer.control_ids == tokenizer.eos_ids
    assert max(ids) < tokenizer.vocabulary


def test_white_space_cannot_go_on_for_ever(compiler, tokenizer, allowed):
    assert max(len(space) for space in re.findall(r"\\n.*?(?=\||$)", WHITESPACE)) < 20
    for space in (" ", "\n", "\t"):
        matcher = compiler.compile(Constraint("json_object"), [], NONE, "chatml").new_matcher()
        matcher.accept(tokenizer.encode("{")[0])
        token = tokenizer.encode(space)[0]
        count = 0
        while token in allowed(matcher):
            matcher.accept(token)
            count += 1
        assert count <= 21


def test_pretty_printed_json_is_allowed(compiler, tokenizer):
    value = {"a": [1, {"b": None}], "c": {}}
    for text in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value, separators=(",", ":"))):
        matcher = compiler.compile(Constraint("json_object"), [], NONE, "chatml").new_matcher()
        for token in tokenizer.encode(text):
            matcher.accept(token)
        assert matcher.is_valid()


def test_drafts_are_tried_ahead_and_change_nothing(compiler, tokenizer, allowed):
    matcher = compile_schema(compiler, SCHEMAS["flat object"]).new_matcher()
    tokens = tokenizer.encode('{"name": "x", "age": 3}')
    for count, token in enumerate(tokens):
        expected = allowed(matcher)
        ahead = matcher.ahead()
        for draft in tokens[count:]:
            ahead.accept(draft)
        assert ahead.is_done()
        with pytest.raises(ValueError, match="does not fit"):
            ahead.accept(token)
        assert allowed(matcher) == expected
        matcher.accept(token)
    assert matcher.is_done()


def test_a_token_outside_the_mask_is_an_error(compiler, tokenizer):
    matcher = compile_schema(compiler, {"type": "integer"}).new_matcher()
    with pytest.raises(ValueError, match="does not fit"):
        matcher.accept(tokenizer.encode("x")[0])


def test_matchers_of_one_constraint_are_independent(compiler, tokenizer):
    compiled = compile_schema(compiler, {"enum": [12, 13]})
    first, second = compiled.new_matcher(), compiled.new_matcher()
    for token in tokenizer.encode("12"):
        first.accept(token)
    assert first.is_done()
    assert not second.is_valid()
    for token in tokenizer.encode("13"):
        second.accept(token)
    assert second.is_done()


def test_rows_of_a_shared_bitmask_are_filled_in_place(compiler, allowed):
    rows = torch.full((3, bitmask_words(compiler.vocab_size)), -1, dtype=torch.int32)
    compile_schema(compiler, {"type": "integer"}).new_matcher().fill(rows[1])
    assert (rows[0] == -1).all()
    assert (rows[2] == -1).all()
    assert (rows[1] != -1).any()
    with pytest.raises(ValueError, match="int32"):
        compile_schema(compiler, {"type": "integer"}).new_matcher().fill(rows[:, 0])


def test_the_same_request_is_compiled_once_and_the_cache_is_bounded(compiler, monkeypatch):
    monkeypatch.setattr(constraint_module, "CACHE_ENTRIES", 2)
    first = compile_schema(compiler, {"const": "a"})
    assert compile_schema(compiler, {"const": "a"}) is first
    compile_schema(compiler, {"const": "b"})
    compile_schema(compiler, {"const": "c"})
    assert compile_schema(compiler, {"const": "a"}) is not first


def test_an_open_reasoning_is_free_and_the_answer_behind_it_is_not(compiler, tokenizer, walk):
    compiled = compile_schema(compiler, {"enum": ["yes", "no"]}, reasoning="open")
    matcher = compiled.new_matcher()
    for token in tokenizer.encode('Well {"x": ...\n</think>\n\n"yes"'):
        matcher.accept(token)
    assert matcher.is_done()
    optional = compile_schema(compiler, {"enum": ["yes", "no"]}, reasoning="optional")
    for text in ("<think>\nhm\n</think>\n\n", ""):
        matcher = optional.new_matcher()
        for token in tokenizer.encode(text + '"no"'):
            matcher.accept(token)
        assert matcher.is_done()


def test_nothing_asked_for_is_no_constraint(compiler):
    tool = Tool("f", "", {"type": "object"})
    assert compiler.compile(None, [], NONE, "chatml") is None
    assert compiler.compile(None, [tool], NONE, "chatml") is None
    assert compiler.compile(None, [Tool("f", "", {"type": "object"}, strict=True)], NONE, "chatml") is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
        {"type": "string", "pattern": "(a|b|c|d)*a(a|b|c|d){500}x"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000},
        {"type": "array", "items": {"type": "string"}, "maxItems": 1_000_000},
        {"type": "string", "minLength": 100_000, "maxLength": 200_000},
        {"enum": [str(number) * 5 for number in range(20_000)]},
        {"allOf": [{"anyOf": [{"const": n + k} for n in range(20)]} for k in range(20)]},
        {"type": "number", "multipleOf": 1e-300},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_a_hostile_schema_is_refused_or_followed_in_bounded_time(compiler, allowed, schema):
    began = time.process_time()
    try:
        matcher = compile_schema(compiler, schema).new_matcher()
        for _ in range(5):
            matcher.accept(allowed(matcher)[-1])
    except UnsupportedSchema:
        pass
    assert time.process_time() - began < 5


def say(compiled, tokenizer, allowed, max_tokens: int, seed: int) -> tuple[str, bool]:
    """Random tokens, as a model that never comes to an end by itself."""
    chance = random.Random(seed)
    matcher = compiled.new_matcher()
    output: list[int] = []
    quotes = {token for token in range(tokenizer.vocabulary) if b'"' in tokenizer.token_bytes(token)}
    quotes |= tokenizer.eos_ids
    row = torch.empty(bitmask_words(tokenizer.vocabulary + PADDING), dtype=torch.int32)
    while len(output) < max_tokens and not matcher.is_done():
        matcher.fill(row, max_tokens - len(output))
        ids = ids_of(row)
        token = chance.choice([token for token in ids if token not in quotes] or ids)
        matcher.accept(token)
        output.append(token)
    text = b"".join(tokenizer.token_bytes(token) for token in output if token not in tokenizer.eos_ids)
    return text.decode("utf-8", "replace"), matcher.is_cut


@pytest.mark.parametrize(
    "name", ["free object", "string", "nested", "array of objects", "recursive", "as pydantic writes it"]
)
@pytest.mark.parametrize("max_tokens", [60, 150])
def test_an_output_that_runs_out_of_tokens_is_closed_in_time(compiler, tokenizer, allowed, name, max_tokens):
    compiled = compile_schema(compiler, SCHEMAS[name])
    for seed in range(3):
        text, is_cut = say(compiled, tokenizer, allowed, max_tokens, seed)
        jsonschema.validate(json.loads(text), SCHEMAS[name])
        assert is_cut or name != "string"


def test_a_limit_that_is_not_reached_changes_nothing(compiler, tokenizer, allowed):
    matcher = compile_schema(compiler, SCHEMAS["flat object"]).new_matcher()
    plain = compile_schema(compiler, SCHEMAS["flat object"]).new_matcher()
    row = torch.empty(bitmask_words(compiler.vocab_size), dtype=torch.int32)
    tokens = tokenizer.encode('{"name": "x", "age": 3}')
    for count, token in enumerate(tokens):
        matcher.fill(row, len(tokens) + 30 - count)
        assert ids_of(row) == allowed(plain)
        matcher.accept(token)
        plain.accept(token)
    assert matcher.is_done()
    assert not matcher.is_cut


def test_a_limit_too_small_for_any_instance_is_no_error(compiler, tokenizer, allowed):
    text, is_cut = say(compile_schema(compiler, SCHEMAS["as pydantic writes it"]), tokenizer, allowed, 4, 0)
    assert text
    assert not is_cut


def test_a_call_is_never_closed_for_the_model(compiler, tokenizer, allowed):
    tool = Tool("f", "", {"properties": {"a": {"type": "string"}}, "required": ["a"]})
    compiled = compiler.compile(None, [tool], ToolChoice(mode="named", names=["f"]), "hermes")
    text, is_cut = say(compiled, tokenizer, allowed, 60, 0)
    assert not is_cut
    assert not text.endswith("</tool_call>")
