"""Callers that behave as real ones do: they stream, wait for whole answers, hang up at any moment, and come back.

Each call is one raw HTTP/1.1 exchange, so that the client's share of the machine stays small beside the product's.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

MODEL = "smollm2-135m-instruct"
HEAD_END = b"\r\n\r\n"
REQUEST_ID = re.compile(rb"x-request-id: ([0-9a-f-]{36})", re.IGNORECASE)
# The last one is the whole answer's; Anthropic's dialect says output_tokens, OpenAI's older one completion_tokens.
OUTPUT_TOKENS = re.compile(rb'"(?:completion|output)_tokens":\s?(\d+)')
ENDS = {
    "chat": b"data: [DONE]\n\n",
    "completions": b"data: [DONE]\n\n",
    "messages": b"event: message_stop",
    "responses": b"event: response.completed",
}
PATHS = {"chat": "chat/completions", "completions": "completions", "messages": "messages", "responses": "responses"}
# Shares of the dialects among the calls.
DIALECTS = ("chat",) * 5 + ("messages",) * 2 + ("responses",) * 2 + ("completions",)
# How long after its first byte a caller hangs up, at most.
PATIENCE_S = 0.15
CALL_TIMEOUT_S = 60.0
# After a refusal or a broken connection, before the next call; twice as long after each that follows, as clients do.
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One call before it is made."""

    dialect: str
    is_stream: bool
    prompt: str
    # None: stays to the end. 0: leaves before the first byte. Else: so many seconds after it.
    hangs_up_after_s: float | None
    is_falsified: bool


@dataclass(slots=True)
class Outcome:
    """What the caller knows afterwards. `tokens` is set where the whole answer came, and the answer said so."""

    tenant: int
    is_falsified: bool
    request_id: str = ""
    tokens: int | None = None


@dataclass
class Load:
    """What to send, and what came of it. Calls are counted when they were answered, or left on purpose."""

    port: int
    keys: list[str]
    calls: int
    hang_ups: float = 0.3
    # Whole answers whose receipt shall say something else, spread over the calls.
    falsified: int = 8
    seed: int = 1
    outcomes: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    # Lies told so far, in whole answers, and whether one is under way.
    lies: int = 0
    _is_lying: bool = False
    _milestone: int = 0
    _passed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def served(self) -> int:
        return len(self.outcomes)

    async def reached(self, calls: int) -> None:
        """Wait until so many calls were served."""
        self._milestone = calls
        self._passed = asyncio.Event()
        if self.served < calls:
            await self._passed.wait()

    async def run(self, at_once: int) -> None:
        self._random = random.Random(self.seed)
        await asyncio.gather(*(self._caller(number % len(self.keys)) for number in range(at_once)))

    def _is_lie_due(self) -> bool:
        due_at = (self.lies + 0.5) * self.calls / max(1, self.falsified)
        return not self._is_lying and self.lies < self.falsified and self.served >= due_at

    def _plan(self) -> Plan:
        rnd = self._random
        dialect = rnd.choice(DIALECTS)
        if self._is_lie_due():
            self._is_lying = True
            # In turn more tokens than were made, and fewer.
            prompt = f"TOKENS:{rnd.randint(1, 30)} RECEIPT:{'-' if self.lies % 2 else '+'}{rnd.randint(1, 9)}"
            return Plan(dialect, rnd.random() < 0.5, prompt, None, True)
        if rnd.random() < self.hang_ups:
            # Fast enough to have begun, slow enough not to be over.
            prompt = f"TOKENS:{rnd.randint(40, 120)} PACE:{rnd.choice((200, 400))}"
            after_s = 0.0 if rnd.random() < 0.25 else rnd.uniform(0.001, PATIENCE_S)
            return Plan(dialect, rnd.random() < 0.8, prompt, after_s, False)
        prompt = f"TOKENS:{rnd.randint(1, 30)}"
        if rnd.random() < 0.3:
            prompt += f" CACHED:{rnd.randint(0, 3)}"
        if rnd.random() < 0.001:
            prompt = f"{prompt} FAIL:device_fault@{rnd.randint(0, 3)}"
        return Plan(dialect, rnd.random() < 0.5, prompt, None, False)

    async def _caller(self, tenant: int) -> None:
        connection: Connection | None = None
        pause_s = PAUSE_S
        while self.served < self.calls:
            plan = self._plan()
            if connection is None:
                with suppress(OSError):
                    connection = await Connection.open(self.port)
            if connection is None:
                self._is_lying = self._is_lying and not plan.is_falsified
                self.counts["unreachable"] += 1
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            outcome = Outcome(tenant, plan.is_falsified)
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    result = await connection.call(plan, self.keys[tenant], outcome)
            except (OSError, EOFError, asyncio.IncompleteReadError):
                result = "cut"
            except TimeoutError:
                result = "timed out"
            self.counts[result] += 1
            if plan.is_falsified:
                self._is_lying = False
                self.lies += result == "whole"
            if result in ("whole", "hung up", "cut", "failed in the stream"):
                self.outcomes.append(outcome)
                if self.served >= self._milestone:
                    self._passed.set()
            if result not in ("whole", "failed in the stream") or not connection.is_reusable:
                connection.abort()
                connection = None
            if result.startswith("refused") or result == "cut":
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                pause_s = PAUSE_S
        if connection is not None:
            connection.abort()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_reusable = True

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def abort(self) -> None:
        self._writer.transport.abort()

    async def call(self, plan: Plan, key: str, outcome: Outcome) -> str:
        """How it ended, in words."""
        body = json.dumps(_body(plan)).encode()
        head = (
            f"POST /v1/{PATHS[plan.dialect]} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            f"x-api-key: {key}\r\nanthropic-version: 2023-06-01\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        if plan.hangs_up_after_s == 0.0:
            await asyncio.sleep(random.uniform(0, 0.02))  # the request has left; some have reached an engine by now
            return "hung up"
        if plan.hangs_up_after_s is not None and not plan.is_stream:
            await asyncio.sleep(plan.hangs_up_after_s)
            return "hung up"
        answer = await self._reader.readuntil(HEAD_END)
        status = int(answer[9:12])
        if found := REQUEST_ID.search(answer):
            outcome.request_id = found[1].decode()
        if status != 200:
            text = await self._read_body(answer)
            self.is_reusable = False
            if b"FAIL" in body and status == 500:
                return "failed as ordered"
            return f"refused {status} {_code(text)}"
        if plan.hangs_up_after_s is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(plan.hangs_up_after_s):
                    await self._read_body(answer)
            return "hung up"
        text = await self._read_body(answer)
        if plan.is_stream and ENDS[plan.dialect] not in text[-4000:]:
            self.is_reusable = False
            return "failed in the stream"
        tokens = OUTPUT_TOKENS.findall(text)
        outcome.tokens = int(tokens[-1]) if tokens else None
        return "whole"

    async def _read_body(self, head: bytes) -> bytes:
        lower = head.lower()
        if b"transfer-encoding: chunked" not in lower:
            length = re.search(rb"content-length: (\d+)", lower)
            return await self._reader.readexactly(int(length[1])) if length else b""
        pieces: list[bytes] = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            pieces.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return b"".join(pieces)


def _code(text: bytes) -> str:
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error.get("code") or error.get("type"))


def _body(plan: Plan) -> dict[str, object]:
    fields: dict[str, object] = {"model": MODEL, "stream": plan.is_stream}
    match plan.dialect:
        case "chat":
            fields["messages"] = [{"role": "user", "content": plan.prompt}]
            if plan.is_stream:
                fields["stream_options"] = {"include_usage": True}
        case "messages":
            fields |= {"messages": [{"role": "user", "content": plan.prompt}], "max_tokens": 200}
        case "responses":
            fields |= {"input": plan.prompt, "store": False}
        case "completions":
            fields |= {"prompt": plan.prompt, "max_tokens": 200}
            if plan.is_stream:
                fields["stream_options"] = {"include_usage": True}
    return fields


@dataclass
class Clock:
    """Seconds of each part of the drill, for the report."""

    spans: dict[str, float] = field(default_factory=dict)

    def __call__(self, name: str) -> _Span:
        return _Span(self, name)


class _Span:
    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._clock.spans[self._name] = time.monotonic() - self._began
