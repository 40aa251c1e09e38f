"""One fake Stripe for the session, empty for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.stripe import FakeStripe


@pytest.fixture(scope="session")
def stripe_server() -> Iterator[FakeStripe]:
    with FakeStripe() as running:
        yield running


@pytest.fixture
def fake(stripe_server: FakeStripe) -> FakeStripe:
    stripe_server.reset()
    return stripe_server
