"""Stop strings, held text, log-probabilities and pieces: what a choice says does not depend on where its tokens end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_grpc.core.batch import SampledToken
from inference_grpc.core.request import Tool, ToolChoice
from inference_grpc.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from inference_grpc.text.output_parser import make_parser
from inference_grpc.text.stop_strings import StopStrings
from inference_grpc.text.stream import ChoiceStream
from inference_grpc.text.tokenizer import ModelTokenizer
from tests.inference_grpc.tiny_model import MERGES, vocabulary

TEXTS, TYPES = vocabulary()
TOKENIZER = ModelTokenizer(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": TEXTS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": MERGES,
    }
)
CHUNKS = st.lists(st.text(alphabet="abé", max_size=4), max_size=12)
STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the text before the stop string that is complete first; of two that end together, the longer."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=300, deadline=None)
@given(chunks=CHUNKS, stops=STOPS)
def test_stop_strings_cut_the_same_place_in_any_chunks_and_never_leak(chunks: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = [matcher.feed(chunk) for chunk in chunks]
    if matcher.matched is None:
        shown.append(matcher.finish())
    expected, matched = cut("".join(chunks), stops)
    assert ("".join(shown), matcher.matched) == (expected, matched)


@settings(max_examples=200, deadline=None)
@given(chunks=CHUNKS, stops=STOPS)
def test_text_is_held_only_while_it_may_become_a_stop_string(chunks: list[str], stops: list[str]) -> None:
    matcher, fed, shown = StopStrings(stops), "", ""
    for chunk in chunks:
        fed += chunk
        shown += matcher.feed(chunk)
        if matcher.matched is not None:
            break
        held = fed[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def say(stream: ChoiceStream, text: str, reason: FinishReason = "eos", logprobs: bool = False) -> list[Event]:
    """Feed a text byte by byte, as the worst of models would say it."""
    events: list[Event] = [*stream.begin()]
    for count, byte in enumerate(text.encode(), start=1):
        token_id = TEXTS.index(next(t for t in TEXTS[3:259] if TOKENIZER.token_bytes(TEXTS.index(t)) == bytes([byte])))
        token = SampledToken(token_id, -0.5, ((token_id, -0.5), (3, -2.0))) if logprobs else SampledToken(token_id)
        events += stream.feed(token, count)
        if stream.end_reason is not None:
            reason = stream.end_reason
            break
    return events + stream.finish(reason, len(text.encode()))


def joined(events: list[Event], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def test_a_character_is_shown_when_it_is_whole_and_a_broken_one_at_the_end() -> None:
    events = say(ChoiceStream(TOKENIZER, stops=[]), "é😀")
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["é", "😀"]
    stream = ChoiceStream(TOKENIZER, stops=[])
    stream.feed(SampledToken(TEXTS.index("ð")), 1)
    assert joined(stream.finish("length", 1), TextDelta) == "\ufffd"


def test_a_stop_string_ends_the_choice_and_is_named() -> None:
    events = say(ChoiceStream(TOKENIZER, stops=["END", "xyz"]), "one ENDtwo")
    assert joined(events, TextDelta) == "one "
    assert events[-1] == ChoiceFinished("stop_string", "END")


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab😀", max_size=10), stops=STOPS)
def test_log_probabilities_are_those_of_the_tokens_whose_text_is_shown(text: str, stops: list[str]) -> None:
    events = say(ChoiceStream(TOKENIZER, stops=stops), text, logprobs=True)
    for event in events:
        if isinstance(event, TextDelta):
            shown = b"".join(logprob.token_bytes for logprob in event.logprobs or [])
            assert shown == event.text.encode()
            assert all(logprob.logprob == -0.5 and len(logprob.top) == 2 for logprob in event.logprobs or [])


def test_a_final_only_choice_says_everything_once_at_its_end() -> None:
    stream = ChoiceStream(TOKENIZER, stops=[], final_only=True, echo="Once upon")
    events = say(stream, " a time", logprobs=True)
    assert [type(event) for event in events] == [TextDelta, ChoiceFinished]
    assert joined(events, TextDelta) == "Once upon a time"
    assert isinstance(events[0], TextDelta)
    assert events[0].completion_tokens == len(" a time")
    assert len(events[0].logprobs or []) == len(" a time")


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.mark.parametrize("final_only", [False, True])
def test_reasoning_and_calls_become_events_of_their_own(final_only: bool) -> None:
    tools = [Tool("weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})]
    parser = make_parser("hermes", tools, ToolChoice(), True, "")
    stream = ChoiceStream(TOKENIZER, choice=2, stops=[], parser=parser, final_only=final_only)
    events = say(stream, f"<think>\nhm é\n</think>\n\nLet me see.\n{CALL}", logprobs=True)
    assert joined(events, ReasoningDelta).strip() == "hm é"
    assert joined(events, TextDelta).strip() == "Let me see."
    assert json.loads(joined(events, ToolCallArguments)) == {"city": "Paris"}
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [(start.index, start.name, start.choice) for start in starts] == [(0, "weather", 2)]
    assert events[-1] == ChoiceFinished("tool_calls", None, 2)
    assert 0 < stream.reasoning_tokens < len("<think>\nhm é\n</think>\n\n".encode())
    shown = [p.token for e in events if isinstance(e, TextDelta) for p in e.logprobs or []]
    assert "h" not in "".join(shown)
    if final_only:
        assert len(events) == 5


def test_one_call_at_a_time_ends_the_choice_after_it() -> None:
    tools = [Tool("weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})]
    parser = make_parser("hermes", tools, ToolChoice(parallel=False), False, "")
    events = say(ChoiceStream(TOKENIZER, stops=[], parser=parser), CALL + " and more")
    assert events[-1] == ChoiceFinished("tool_calls")
    assert joined(events, TextDelta) == ""
