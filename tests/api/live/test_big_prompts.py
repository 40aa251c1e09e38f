"""Prompts of megabytes are work for the engine; the gateway answers others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.api.live.service import PATIENCE_S, Engine, Web, make_account, make_model


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
    prompt = "PACE:100 TOKENS:10 " + "word " * 1_000_000
    answers: list[int] = []
    is_over = threading.Event()

    def probe() -> None:
        while not is_over.is_set():
            answers.append(httpx.get(f"{account.web.url}/health", timeout=PATIENCE_S).status_code)

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        answer = account.post(prompt, model="long-context")
    finally:
        is_over.set()
        prober.join()
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["usage"]["prompt_tokens"] >= 1_000_000
    # The call takes a second at least; a loop that is held by it answers one or two of these.
    assert len(answers) > 5
    assert set(answers) == {200}
    account.assert_books_agree()
