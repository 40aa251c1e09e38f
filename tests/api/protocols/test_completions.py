"""Legacy Completions: prompts of every form, choices counted over prompts, refusals by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from api.protocols import completions
from api.protocols.errors import BadRequest
from inference_grpc.events import ChoiceFinished, Finished, Started, TextDelta, Usage
from tests.api.protocols.scenarios import frames_of, write_all, writer_of


def parsed(**fields: Any) -> completions.Parsed:
    return completions.parse(orjson.dumps({"model": "m", "prompt": "Hi", **fields}))


@pytest.mark.parametrize(
    ("prompt", "texts", "tokens"),
    [
        ("a", ["a"], [None]),
        (["a", "b"], ["a", "b"], [None, None]),
        ([1, 2], [None], [[1, 2]]),
        ([[1], [2, 3]], [None, None], [[1], [2, 3]]),
        (["a", [1]], ["a", None], [None, [1]]),
    ],
)
def test_prompt_forms(prompt: Any, texts: list[Any], tokens: list[Any]) -> None:
    found = parsed(prompt=prompt).requests
    assert [request.prompt_text for request in found] == texts
    assert [request.prompt_tokens for request in found] == tokens


def test_fields_reach_the_request() -> None:
    (request,) = parsed(
        max_tokens=5, n=2, stop="\n", echo=True, logprobs=0, seed=7, top_p=0.5, logit_bias={"50": -100}, user="u"
    ).requests
    assert (request.max_tokens, request.n, request.stop, request.echo) == (5, 2, ["\n"], True)
    assert (request.logprobs, request.top_logprobs) == (True, 0)
    assert (request.sampling.seed, request.sampling.top_p, request.sampling.logit_bias) == (7, 0.5, {50: -100})
    assert request.end_user == "u"


def test_choices_of_several_prompts_are_numbered_through() -> None:
    writer = writer_of("completions", stream=False, extra={"prompt": ["a", "b"], "n": 2})
    events: list[Any] = [Started(4, 0)]
    events += [TextDelta(f"t{index}", 1, choice=index) for index in (2, 0, 3, 1)]
    events += [ChoiceFinished("eos", choice=index) for index in range(4)]
    write_all(writer, [*events, Finished(Usage(4, 0, 4))])
    answer = orjson.loads(writer.result())
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "t0"),
        (1, "t1"),
        (2, "t2"),
        (3, "t3"),
    ]
    assert answer["usage"]["total_tokens"] == 8


def test_error_in_a_stream_has_no_done() -> None:
    (frame,) = frames_of(writer_of("completions", stream=True).fail("engine_unavailable", "gone"))
    assert frame.data["error"]["message"] == "gone"


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "Missing"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": ["a", ""]}, "prompt[1]", "empty"),
    ({"prompt": [1, "a"]}, "prompt", "mixes"),
    ({"prompt": [-1]}, "prompt[0]", "at least 0"),
    ({"prompt": ["a"] * 33}, "prompt", "32"),
    ({"suffix": "x"}, "suffix", "end only"),
    ({"best_of": 3}, "best_of", "'n'"),
    ({"n": 9}, "n", "at most 8"),
    ({"n": 0}, "n", "at least 1"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"logprobs": 21}, "logprobs", "at most 20"),
    ({"stop": list("abcde")}, "stop", "at most 4"),
    ({"stop": [""]}, "stop[0]", "empty"),
    ({"stream_options": {}}, "stream_options", "stream"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
    ({"logit_bias": {"1": 101}}, "logit_bias[...]", "at most 100"),
]


@pytest.mark.parametrize(("fields", "param", "says"), REFUSALS, ids=[f"{p}-{s}" for _, p, s in REFUSALS])
def test_refusal_names_the_field_and_the_remedy(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parsed(**fields)
    assert refusal.value.param == param
    assert says in refusal.value.message
