"""One fake Stripe for the session, empty for each test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from billing.payments import events
from billing.payments.stripe_gateway import StripeGateway
from tests.fakes.stripe import FakeStripe


@pytest.fixture(scope="session")
def stripe_server() -> Iterator[FakeStripe]:
    with FakeStripe() as running:
        yield running


@pytest.fixture
def fake(stripe_server: FakeStripe) -> FakeStripe:
    stripe_server.reset()
    return stripe_server


@pytest.fixture
def gateway(fake: FakeStripe) -> StripeGateway:
    """The product's own gateway, speaking to the fake through the official client."""
    return StripeGateway(secret_key=fake.secret_key, webhook_secrets=[fake.webhook_secret], api_base=fake.url)


@pytest.fixture
def tell(fake: FakeStripe, gateway: StripeGateway) -> Callable[[dict[str, Any]], str]:
    """Deliver an event of the fake and work it, as the webhook and its task do."""

    def deliver(event: dict[str, Any]) -> str:
        body = json.dumps(event, default=str).encode()
        kept = events.receive_event(body, fake.sign(body), gateway=gateway)
        return str(events.work_event(kept.id, gateway=gateway))

    return deliver
