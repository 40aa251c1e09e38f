"""Requests through the whole engine on a tiny model: what comes out, in which order, and what goes wrong alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from inference_grpc.config import EngineConfig
from inference_grpc.core.batch import Batch, SampledToken
from inference_grpc.core.request import ChatPrompt, Constraint, Embedding, Message, Request, Tool, ToolChoice
from inference_grpc.engine import load_backend
from inference_grpc.errors import (
    DeviceFault,
    EngineError,
    EngineShutdown,
    InvalidRequest,
    ModelNotServed,
    PromptTooLong,
    QueueFull,
    UnsupportedSchema,
)
from inference_grpc.events import ChoiceFinished, Event, Failed, Finished, Started, TextDelta, ToolCallStart, Usage
from tests.inference_grpc.engine_fixtures import MakeClient
from tests.inference_grpc.running import TIMEOUT_S, Client, chat, complete, reasons_of, text_of, usage_of

ENDLESS: dict[str, Any] = {"ignore_eos": True}


def has_text(events: list[Event]) -> bool:
    return any(isinstance(event, TextDelta) for event in events)


def test_events_come_in_order_with_cumulative_counts(make_client: MakeClient) -> None:
    (events,) = make_client().run(chat("hello", max_tokens=20, **ENDLESS))
    assert isinstance(events[0], Started)
    counts = [event.completion_tokens for event in events if isinstance(event, TextDelta)]
    assert counts == sorted(counts)
    assert isinstance(events[-2], ChoiceFinished)
    prompt_tokens = events[0].prompt_tokens
    assert events[-1] == Finished(Usage(prompt_tokens, 0, 20))
    assert reasons_of(events) == {0: "length"}


def test_the_same_text_alone_in_a_batch_in_small_chunks_and_after_preemption(make_client: MakeClient) -> None:
    prompts = [f"{n} tell the tale of " + "hello " * (5 * n) for n in range(8)]
    requests = [complete(prompt, max_tokens=40, **ENDLESS) for prompt in prompts]
    client = make_client()
    alone = [text_of(client.run(request)[0]) for request in requests]
    assert [text_of(events) for events in make_client().run(*requests)] == alone
    chunked = make_client(prefill_tokens=17, page_tokens=8, pages=128)
    assert [text_of(events) for events in chunked.run(*requests)] == alone
    # Pages for about three of them: the others are preempted and computed again, partly from found prefixes.
    crowded = make_client(pages=36)
    assert [text_of(events) for events in crowded.run(*requests)] == alone
    assert crowded.backend.engine.scheduler.preemptions > crowded.backend.engine.scheduler.swaps == 0
    swapping = make_client(pages=36, swap_mib=1)
    assert [text_of(events) for events in swapping.run(*requests)] == alone
    assert swapping.backend.engine.scheduler.swaps > 0


def test_a_seed_fixes_the_text_and_none_varies_it(make_client: MakeClient) -> None:
    client = make_client()
    hot = {"temperature": 1.5}
    seeded = complete("hello", sampling={**hot, "seed": 11}, max_tokens=15, n=2, **ENDLESS)
    noise = [complete(f"{n} the", sampling=hot, max_tokens=15, **ENDLESS) for n in range(5)]
    (first,) = client.run(seeded)
    *_, second = client.run(*noise, seeded)
    assert [text_of(first, n) for n in (0, 1)] == [text_of(second, n) for n in (0, 1)]
    assert text_of(first, 0) != text_of(first, 1)
    other = complete("hello", sampling={**hot, "seed": 12}, max_tokens=15, **ENDLESS)
    assert text_of(client.run(other)[0]) != text_of(first)
    loose = complete("hello", sampling=hot, max_tokens=15, **ENDLESS)
    assert len({text_of(client.run(loose)[0]) for _ in range(4)}) > 1


def test_choices_share_the_prompt_and_are_counted_together(make_client: MakeClient) -> None:
    client = make_client()
    prompt = "hello the " * 12
    (events,) = client.run(complete(prompt, sampling={"temperature": 1.0}, n=3, max_tokens=7, **ENDLESS))
    assert reasons_of(events) == {0: "length", 1: "length", 2: "length"}
    usage = usage_of(events)
    assert usage.completion_tokens == 21
    assert usage.prompt_tokens == client.backend.count_tokens(prompt)
    assert sum(1 for event in events if isinstance(event, Started)) == 1


def test_a_prompt_met_before_is_cached_for_its_tenant_only(make_client: MakeClient) -> None:
    client = make_client()
    prompt = "hello the " * 12
    cold, warm = (client.run(complete(prompt, max_tokens=5, tenant="ada"))[0] for _ in range(2))
    (other,) = client.run(complete(prompt, max_tokens=5, tenant="ben"))
    tokens = usage_of(cold).prompt_tokens
    assert usage_of(cold).cached_tokens == usage_of(other).cached_tokens == 0
    assert usage_of(warm).cached_tokens == (tokens - 1) // 16 * 16 > 0
    assert text_of(warm) == text_of(cold) == text_of(other)
    info = client.backend.info()
    assert info.prefix_hit_tokens == usage_of(warm).cached_tokens
    assert info.prompt_tokens == 3 * tokens


def test_a_conversation_finds_its_own_answers_again(make_client: MakeClient) -> None:
    client = make_client()
    no_control = {"logit_bias": {0: -100.0, 1: -100.0, 2: -100.0}}
    (first,) = client.run(complete([5] * 20, sampling=no_control, max_tokens=30, logprobs=True, **ENDLESS))
    tokenizer = client.backend._preparer._tokenizer
    id_of = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocabulary)}
    tokens = [p.token_bytes for event in first if isinstance(event, TextDelta) for p in event.logprobs or []]
    assert len(tokens) >= 28  # the last may be pieces of a character that never became whole
    conversation = [5] * 20 + [id_of[token] for token in tokens][:28]
    (second,) = client.run(complete([*conversation, 9], max_tokens=1))
    assert usage_of(second).cached_tokens == 48


def test_max_tokens_zero_goes_on_to_the_end_of_the_context(make_client: MakeClient) -> None:
    client = make_client(pages=8)
    assert client.backend.info().context_tokens == 128
    (events,) = client.run(complete([5] * 100, **ENDLESS))
    assert reasons_of(events) == {0: "context_full"}
    assert usage_of(events).completion_tokens == 28


def test_the_end_token_ends_the_text_unless_ignored(make_client: MakeClient) -> None:
    client = make_client()
    always_end = {"logit_bias": {2: 100.0}}
    (events,) = client.run(complete("hello", sampling=always_end, max_tokens=5))
    assert (reasons_of(events), text_of(events), usage_of(events).completion_tokens) == ({0: "eos"}, "", 1)
    (events,) = client.run(complete("hello", sampling=always_end, max_tokens=5, ignore_eos=True))
    assert (reasons_of(events), usage_of(events).completion_tokens) == ({0: "length"}, 5)


def test_stop_strings_end_the_text_without_leaking(make_client: MakeClient) -> None:
    client = make_client()
    (events,) = client.run(complete("hello", max_tokens=30, **ENDLESS))
    whole = text_of(events)
    stop = whole[5:8]
    (events,) = client.run(complete("hello", max_tokens=30, stop=["never", stop], **ENDLESS))
    assert text_of(events) == whole[: whole.index(stop)]
    finish = next(event for event in events if isinstance(event, ChoiceFinished))
    assert (finish.reason, finish.matched_stop) == ("stop_string", stop)
    assert usage_of(events).completion_tokens < 30


def test_echo_and_final_only(make_client: MakeClient) -> None:
    client = make_client()
    (streamed,) = client.run(complete("hello the", max_tokens=6, **ENDLESS))
    (events,) = client.run(complete("hello the", max_tokens=6, echo=True, final_only=True, **ENDLESS))
    assert [type(event) for event in events] == [Started, TextDelta, ChoiceFinished, Finished]
    assert text_of(events) == "hello the" + text_of(streamed)
    ids = client.backend._preparer._tokenizer.encode("hello the")
    (events,) = client.run(complete(ids, max_tokens=1, echo=True))
    assert text_of(events).startswith("hello the")


def test_log_probabilities_come_with_every_token(make_client: MakeClient) -> None:
    request = complete("hello", max_tokens=12, logprobs=True, top_logprobs=4, **ENDLESS)
    (events,) = make_client().run(request)
    tokens = [p for event in events if isinstance(event, TextDelta) for p in event.logprobs or []]
    assert len(tokens) == 12
    for token in tokens:
        values = [top.logprob for top in token.top]
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0]
        assert (token.token, token.token_bytes) == (token.top[0].token, token.top[0].token_bytes)


def test_penalties_keep_a_model_from_repeating_itself(make_client: MakeClient) -> None:
    client = make_client()
    favour = {"logit_bias": {50: 30.0, 51: 29.0, 52: 28.0}}
    (plain,) = client.run(complete("a", sampling=favour, max_tokens=6, **ENDLESS))
    (varied,) = client.run(complete("a", sampling={**favour, "presence_penalty": 2.0}, max_tokens=6, **ENDLESS))
    assert len(set(text_of(plain))) < len(set(text_of(varied)))


def test_constraints_and_tools_hold_even_a_random_model(make_client: MakeClient) -> None:
    client = make_client()
    constrained = complete("x", max_tokens=60, constraint=Constraint("regex", "(yes|no) [0-9]{3}"))
    (events,) = client.run(constrained)
    answer, number = text_of(events).split(" ")
    assert answer in ("yes", "no")
    assert number.isdigit()
    assert reasons_of(events) == {0: "eos"}
    tool = Tool("ping", "", {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]})
    call = chat("x", max_tokens=100, tool_choice=ToolChoice("named", ["ping"]))
    assert isinstance(call.prompt, ChatPrompt)
    call.prompt.tools = [tool]
    (events,) = client.run(call)
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["ping"]
    assert reasons_of(events) == {0: "tool_calls"}


def test_cancel_ends_within_a_step_and_frees_everything(make_client: MakeClient) -> None:
    client = make_client()
    steps_after: list[int] = []
    key = client.submit(complete("hello", n=2, **ENDLESS))
    client.wait(key, until=has_text)
    client.backend.cancel(key)
    asked = client.backend.info().steps
    events = client.wait(key)
    steps_after.append(client.backend.info().steps - asked)
    assert steps_after[0] <= 2
    assert set(reasons_of(events).values()) == {"cancelled"}
    assert isinstance(events[-1], Finished)
    assert events[-1].cancelled
    assert 0 < usage_of(events).completion_tokens < 900
    client.backend.cancel(key)
    client.backend.cancel(12345)
    assert text_of(client.run(complete("hello", max_tokens=3, **ENDLESS))[0])


def test_a_request_cancelled_while_it_waits_used_nothing(make_client: MakeClient) -> None:
    client = make_client(max_sequences=1)
    running = client.submit(complete("hello", **ENDLESS))
    client.wait(running, until=has_text)
    waiting = client.submit(complete("hello", **ENDLESS))
    client.backend.cancel(waiting)
    assert client.wait(waiting) == [Finished(Usage(), cancelled=True)]
    client.backend.cancel(running)
    client.wait(running)
    assert client.backend.info().waiting == 0


def test_a_full_queue_refuses_with_both_numbers(make_client: MakeClient) -> None:
    client = make_client(max_sequences=1, queue_limit=2)
    running = client.submit(complete("hello", **ENDLESS))
    client.wait(running, until=has_text)
    waiting = [client.submit(complete("hello", max_tokens=2)) for _ in range(2)]
    with pytest.raises(QueueFull) as refusal:
        client.submit(complete("hello"))
    assert refusal.value.fields == {"waiting": "2", "limit": "2"}
    client.backend.cancel(running)
    for key in waiting:
        assert isinstance(client.wait(key)[-1], Finished)
    client.run(complete("hello", max_tokens=1))


def test_a_deadline_ends_a_running_and_a_waiting_request(make_client: MakeClient) -> None:
    client = make_client(max_sequences=1)
    # A busy machine needs more time to begin before the deadline.
    for grace_ms in (150, 3_000, 60_000):
        soon = int(time.time() * 1000) + grace_ms
        running = client.submit(complete("hello", deadline_unix_ms=soon, **ENDLESS))
        waiting = client.submit(complete("hello", deadline_unix_ms=soon, **ENDLESS))
        last = [client.wait(key)[-1] for key in (running, waiting)]
        assert [event.code for event in last if isinstance(event, Failed)] == ["deadline_exceeded"] * 2
        assert usage_of(client.wait(waiting)) == Usage()
        if usage_of(client.wait(running)).completion_tokens > 0:
            return
    raise AssertionError("no deadline was long enough")


def test_a_device_fault_fails_what_is_open_with_its_usage_and_ends_the_engine(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = load_backend(EngineConfig(model=str(tiny_path), pages=64, prefill_tokens=64))
    run, calls, faults = backend.engine._runner.run, [0], threading.Semaphore(0)
    are_submitted = threading.Event()

    def break_down(batch: Batch) -> list[SampledToken | EngineError]:
        calls[0] += are_submitted.is_set()
        if calls[0] == 4:
            raise RuntimeError("out of memory")
        return run(batch)

    monkeypatch.setattr(backend.engine._runner, "run", break_down)
    start = backend.start
    monkeypatch.setattr(backend, "start", lambda on_step: start(on_step, faults.release))
    client = Client(backend)
    keys = [client.submit(complete(f"{n}", **ENDLESS)) for n in range(3)]
    are_submitted.set()
    failures = [client.wait(key)[-1] for key in keys]
    assert all(isinstance(event, Failed) and event.code == DeviceFault.code for event in failures)
    assert any(event.usage.completion_tokens for event in failures if isinstance(event, Failed))
    assert faults.acquire(timeout=TIMEOUT_S)
    assert backend.engine.counters.faults == 1
    with pytest.raises(EngineShutdown):
        client.submit(complete("hello"))
    backend.close()
    backend.engine.check_integrity()
    assert backend.engine.cache.pool.held == 0


def test_values_that_are_not_finite_fail_one_request_and_poison_no_page(make_client: MakeClient) -> None:
    client = make_client()
    expected = text_of(client.run(complete("hello", max_tokens=8, **ENDLESS))[0])
    model = client.backend.engine._runner._model
    embedding = model._weights.embedding
    sound = embedding[99].clone()
    embedding[99] = float("nan")
    bad, good = client.run(complete([99] * 20, max_tokens=8), complete("hello", max_tokens=8, **ENDLESS))
    embedding[99] = sound
    assert isinstance(bad[-1], Failed)
    assert bad[-1].code == "device_fault"
    assert text_of(good) == expected
    for _ in range(6):
        assert text_of(client.run(complete("hello", max_tokens=8, tenant="ben", **ENDLESS))[0]) == expected
    assert all(bool(pool.pages.isfinite().all()) for pool in model._pools)


def test_a_request_whose_text_breaks_fails_alone(make_client: MakeClient) -> None:
    client = make_client()
    prepared = client.backend.prepare(complete("hello", max_tokens=5))
    prepared.streams[0].feed = lambda token, count: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    good = client.submit(complete("hello", max_tokens=20, **ENDLESS))
    client._events[99] = []
    client.backend.submit(99, prepared)
    broken = client.wait(99)[-1]
    assert isinstance(broken, Failed)
    assert broken.code == "engine_error"
    assert isinstance(client.wait(good)[-1], Finished)


def test_a_reader_that_raises_does_not_stop_the_loop(make_client: MakeClient) -> None:
    client = make_client()

    def fail(key: int, event: Event) -> None:
        if isinstance(event, Started):
            raise RuntimeError("reader is broken")

    client.on_event = fail
    key = client.submit(complete("hello", max_tokens=3, **ENDLESS))
    assert isinstance(client.wait(key)[-1], Finished)


def test_an_idle_engine_uses_no_time(make_client: MakeClient) -> None:
    client = make_client()
    client.run(complete("hello", max_tokens=3))
    thread = next(thread for thread in threading.enumerate() if thread is client.backend.engine._thread)
    assert thread.native_id is not None
    # It may still have had something to put away.
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        before = cpu_ticks(thread.native_id)
        time.sleep(0.3)
        if cpu_ticks(thread.native_id) == before:
            return
        assert time.monotonic() < deadline


def cpu_ticks(thread_id: int) -> int:
    with open(f"/proc/self/task/{thread_id}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_closing_ends_open_requests_and_refuses_new_ones(make_client: MakeClient) -> None:
    client = make_client()
    key = client.submit(complete("hello", **ENDLESS))
    client.wait(key, until=has_text)
    client.backend.close()
    last = client.wait(key)[-1]
    assert isinstance(last, Failed)
    assert last.code == EngineShutdown.code
    assert last.usage.completion_tokens > 0
    with pytest.raises(EngineShutdown):
        client.submit(complete("hello"))


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        (complete("x", n=0), InvalidRequest, "n"),
        (complete("", embedding=Embedding(["x"])), InvalidRequest, "model"),
        (complete("x", max_tokens=-1), InvalidRequest, "max_tokens"),
        (complete("x", top_logprobs=21), InvalidRequest, "top_logprobs"),
        (complete("x", stop=[""]), InvalidRequest, "stop"),
        (complete(""), InvalidRequest, "prompt"),
        (complete([]), InvalidRequest, "prompt"),
        (complete([10_000]), InvalidRequest, "prompt"),
        (chat("x", echo=True), InvalidRequest, "echo"),
        (Request("r", ChatPrompt([])), InvalidRequest, "messages"),
        (complete("x", sampling={"temperature": -0.1}), InvalidRequest, "temperature"),
        (complete("x", sampling={"temperature": float("nan")}), InvalidRequest, "temperature"),
        (complete("x", sampling={"top_p": 1.1}), InvalidRequest, "top_p"),
        (complete("x", sampling={"min_p": -1.0}), InvalidRequest, "min_p"),
        (complete("x", sampling={"top_k": -1}), InvalidRequest, "top_k"),
        (complete("x", sampling={"presence_penalty": 3.0}), InvalidRequest, "presence_penalty"),
        (complete("x", sampling={"repetition_penalty": 0.0}), InvalidRequest, "repetition_penalty"),
        (complete("x", sampling={"logit_bias": {99_999: 1.0}}), InvalidRequest, "logit_bias"),
        (complete("x", sampling={"logit_bias": {1: 101.0}}), InvalidRequest, "logit_bias"),
        (complete("x", model="gpt-9"), ModelNotServed, None),
        (complete([5] * 900, max_tokens=125), PromptTooLong, None),
        (complete([5] * 1024), PromptTooLong, None),
        (complete("x", constraint=Constraint("json_schema", '{"not": {}}')), UnsupportedSchema, None),
        (chat("x", tool_choice=ToolChoice("required")), InvalidRequest, "tool_choice"),
    ],
)
def test_bad_requests_are_refused_by_field(
    shared_client: Client, request_: Request, error: type[EngineError], param: str | None
) -> None:
    with pytest.raises(error) as refusal:
        shared_client.backend.prepare(request_)
    assert refusal.value.fields.get("param") == param
    if error is PromptTooLong:
        assert refusal.value.fields["context_tokens"] == "1024"


@pytest.fixture(scope="module")
def shared_client(tiny_path: Any) -> Any:
    from inference_grpc.config import EngineConfig
    from inference_grpc.engine import load_backend

    client = Client(load_backend(EngineConfig(model=str(tiny_path), pages=64)))
    yield client
    client.backend.close()


def test_a_count_is_that_of_the_prompt(shared_client: Client) -> None:
    request = chat("hello the tale")
    assert isinstance(request.prompt, ChatPrompt)
    (events,) = shared_client.run(request)
    assert shared_client.backend.count_tokens(request.prompt) == usage_of(events).prompt_tokens
    started = ChatPrompt([Message("user", "hello the tale"), Message("assistant", "h")], continue_final_message=True)
    assert shared_client.backend.count_tokens(started) == usage_of(events).prompt_tokens + 1
