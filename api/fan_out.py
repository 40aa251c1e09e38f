"""Several generations answered as one: legacy Completions with a list of prompts. Each has a record of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api.backends.stream import BufferedStream
from api.generation import Generation
from inference_grpc.events import Event, Failed, Finished, Started, Usage


class FanOut:
    """The face of a Generation. The events of prompt i come with `choice = i * n + choice`; the sums come once."""

    def __init__(self, generations: Sequence[Generation], choices: int) -> None:
        self._generations = generations
        self._choices = choices
        self._stream = BufferedStream(lambda: None)
        self._pumps: list[asyncio.Task[Finished | Failed]] = []
        self._ending: asyncio.Task[None] | None = None
        self.request_id = generations[0].request_id
        self.reservation = generations[-1].reservation
        self.is_finished = False
        self.started: Started | None = None

    def commit_to_attempt(self) -> bool:
        """Nothing is sent before all have begun."""
        return False

    async def begin(self) -> list[Event]:
        """Raises ApiError when one is refused; the others are then cancelled, and all records finished."""
        loop = asyncio.get_running_loop()
        begun = [loop.create_task(generation.begin()) for generation in self._generations]
        await asyncio.wait(begun)
        firsts: list[list[Event]] = []
        refusal: BaseException | None = None
        for task in begun:
            if task.exception() is None:
                firsts.append(task.result())
            else:
                firsts.append([])
                refusal = refusal or task.exception()
        if refusal is not None:
            self.cancel()
            pairs = zip(self._generations, firsts, strict=True)
            await asyncio.gather(*(self._pump(0, generation, first) for generation, first in pairs if first))
            self.is_finished = True
            raise refusal
        started = [generation.started or Started(0, 0) for generation in self._generations]
        prompt_tokens, cached_tokens = sum(s.prompt_tokens for s in started), sum(s.cached_tokens for s in started)
        self._stream.append(Started(prompt_tokens, cached_tokens, started[0].fingerprint))
        self._pumps = [
            loop.create_task(self._pump(position, generation, first))
            for position, (generation, first) in enumerate(zip(self._generations, firsts, strict=True))
        ]
        self._ending = loop.create_task(self._end())
        return await self._stream.next()

    async def _pump(self, position: int, generation: Generation, events: list[Event]) -> Finished | Failed:
        while True:
            for event in events:
                if isinstance(event, Finished | Failed):
                    await generation.finish(event)
                    if isinstance(event, Failed):
                        self.cancel()
                    return event
                if not isinstance(event, Started):
                    event.choice += position * self._choices
                    self._stream.append(event)
            events = await generation.next()

    async def _end(self) -> None:
        ends = await asyncio.gather(*self._pumps)
        usage = Usage()
        for end in ends:
            usage.prompt_tokens += end.usage.prompt_tokens
            usage.cached_tokens += end.usage.cached_tokens
            usage.completion_tokens += end.usage.completion_tokens
            usage.reasoning_tokens += end.usage.reasoning_tokens
            usage.cache_write_tokens += end.usage.cache_write_tokens
        self.is_finished = True
        failed = next((end for end in ends if isinstance(end, Failed)), None)
        if failed is not None:
            self._stream.append(Failed(failed.code, failed.message, usage, failed.fields))
        else:
            self._stream.append(Finished(usage, cancelled=any(isinstance(e, Finished) and e.cancelled for e in ends)))

    async def ready(self) -> None:
        await self._stream.ready()

    async def next(self) -> list[Event]:
        return await self._stream.next()

    def cancel(self) -> None:
        for generation in self._generations:
            generation.cancel()

    async def finish(self, last: Finished | Failed) -> None:
        """Each generation has finished its own record before the last event came."""

    async def run_out(self) -> None:
        self.cancel()
        if self._ending is not None:
            await asyncio.wait([self._ending])
