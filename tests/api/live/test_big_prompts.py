"""Prompts of megabytes are work for the engine; the gateway answers others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.api.live.service import PATIENCE_S, Account, Engine, Web, make_account, make_model

ROUNDS = 5


@pytest.fixture
def long_engine(folder: Path) -> Iterator[Engine]:
    engine = Engine(folder, "context_tokens = 20_000_000\n")
    engine.start()
    yield engine
    engine.stop()


def test_health_is_answered_while_a_prompt_of_megabytes_is_taken(
    own_web: Callable[..., Web], long_engine: Engine
) -> None:
    make_model("long-context", long_engine.address, context_tokens=20_000_000)
    account = make_account(own_web(REQUEST_BODY_LIMIT_BYTES=str(16 << 20)))
    # The call takes a second at least; a loop that is held by it answers one or two beside it, every time. One that is
    # not answers a hundred, if nothing else keeps this machine from asking.
    answered = []
    while len(answered) < ROUNDS and max(answered, default=0) <= 5:
        answered.append(health_beside_a_call(account))
    assert answered[-1] > 5, answered
    account.assert_books_agree()


def health_beside_a_call(account: Account) -> int:
    """How often the gateway says that it is well while it takes a prompt of a million words."""
    answers: list[int] = []
    is_over = threading.Event()

    def probe() -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not is_over.is_set():
                answers.append(client.get(f"{account.web.url}/health").status_code)

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        answer = account.post("PACE:100 TOKENS:10 " + "word " * 1_000_000, model="long-context")
    finally:
        is_over.set()
        prober.join()
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["usage"]["prompt_tokens"] >= 1_000_000
    assert set(answers) <= {200}
    return len(answers)
