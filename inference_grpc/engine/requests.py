"""A request between the server and the loop: prepared by any thread, then open until its last event."""

from __future__ import annotations

from dataclasses import dataclass

from inference_grpc.core.batch import SampledToken
from inference_grpc.core.request import Request
from inference_grpc.core.sequence import Sequence, TokenMatcher
from inference_grpc.engine.sampler import choice_seed
from inference_grpc.errors import EngineError
from inference_grpc.events import Event, Failed, Finished, FinishReason, Started, Usage
from inference_grpc.text.stream import ChoiceStream


@dataclass(slots=True)
class PreparedRequest:
    """Implements `core.backend.Prepared`. Streams and matchers are one per choice and used once."""

    request: Request
    prompt_ids: list[int]
    max_tokens: int
    seed: int
    eos_ids: frozenset[int]  # empty when they do not end the text
    streams: list[ChoiceStream]
    matchers: list[TokenMatcher | None]

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt_ids)


class OpenRequest:
    """A submitted request: its sequences, one per choice, and the events they turn into. Used by the loop only."""

    def __init__(self, key: int, prepared: PreparedRequest, arrival: int) -> None:
        self.key = key
        self.request_id = prepared.request.request_id
        self.deadline_unix_ms = prepared.request.deadline_unix_ms
        self._prepared = prepared
        self._usage: Usage | None = None  # set when the first sequence is admitted
        self.sequences: list[Sequence] = []
        for choice, matcher in enumerate(prepared.matchers):
            self.sequences.append(
                Sequence(
                    key=key,
                    choice=choice,
                    prompt_ids=prepared.prompt_ids,
                    sampling=prepared.request.sampling,
                    seed=choice_seed(prepared.seed, choice),
                    max_tokens=prepared.max_tokens,
                    tenant=prepared.request.tenant,
                    priority=prepared.request.priority,
                    top_logprobs=prepared.request.top_logprobs if prepared.request.logprobs else -1,
                    arrival=arrival + choice,
                    matcher=matcher,
                    leader=self.sequences[0] if choice else None,
                )
            )
        self.unfinished = list(self.sequences)

    @property
    def has_started(self) -> bool:
        return self._usage is not None

    @property
    def usage(self) -> Usage:
        """Nothing was used before the first sequence was admitted."""
        if self._usage is None:
            return Usage()
        self._usage.reasoning_tokens = sum(stream.reasoning_tokens for stream in self._prepared.streams)
        return Usage(**{name: getattr(self._usage, name) for name in Usage.__slots__})

    def start(self, cached_tokens: int) -> list[Event]:
        """Its first sequence was admitted."""
        self._usage = Usage(prompt_tokens=self._prepared.prompt_tokens, cached_tokens=cached_tokens)
        events: list[Event] = [Started(self._prepared.prompt_tokens, cached_tokens)]
        for stream in self._prepared.streams:
            events += stream.begin()
        return events

    def take(self, sequence: Sequence, token: SampledToken) -> tuple[list[Event], bool]:
        """Append a sampled token. The events it makes, and whether this choice is over."""
        assert self._usage is not None, "a token was sampled before the request started"
        sequence.append(token.token_id)
        self._usage.completion_tokens += 1
        if token.token_id in self._prepared.eos_ids:
            return self._finish(sequence, self._own_end(sequence)), True
        if sequence.matcher is not None:
            sequence.matcher.accept(token.token_id)
        stream = self._prepared.streams[sequence.choice]
        events: list[Event] = [*stream.feed(token, self._usage.completion_tokens)]
        reason = stream.end_reason or self._limit_reached(sequence)
        if reason is None:
            return events, False
        return events + self._finish(sequence, reason), True

    def _limit_reached(self, sequence: Sequence) -> FinishReason | None:
        if sequence.matcher is not None and sequence.matcher.is_done():
            return self._own_end(sequence)
        return self._limit if sequence.generated >= sequence.max_tokens else None

    def _own_end(self, sequence: Sequence) -> FinishReason:
        """Why an output ended that has its end; the limit, where the constraint closed it just in time."""
        return self._limit if sequence.matcher is not None and sequence.matcher.is_cut else "eos"

    @property
    def _limit(self) -> FinishReason:
        return "length" if self._prepared.request.max_tokens else "context_full"

    def cancel(self) -> list[Event]:
        events: list[Event] = []
        if self.has_started:
            for sequence in list(self.unfinished):
                events += self._finish(sequence, "cancelled")
        self.unfinished.clear()
        return [*(event for event in events if not isinstance(event, Finished)), Finished(self.usage, cancelled=True)]

    def fail(self, error: EngineError) -> list[Event]:
        self.unfinished.clear()
        return [Failed(error.code, error.message, self.usage, error.fields)]

    def _finish(self, sequence: Sequence, reason: FinishReason) -> list[Event]:
        """End one choice; with the last of them the request."""
        stream = self._prepared.streams[sequence.choice]
        events = stream.finish(reason, self.usage.completion_tokens)
        self.unfinished.remove(sequence)
        if not self.unfinished:
            events.append(Finished(self.usage))
        return events
