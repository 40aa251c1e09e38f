"""The cast of the portal's tests, and a client for each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from portal.catalog.models import Model
from portal.quotas import snapshot
from portal.users.models import User
from tests.factories.portal import Cast, make_cast, make_model


@pytest.fixture
def cast(db: None) -> Cast:
    return make_cast()


@pytest.fixture
def model(db: None) -> Model:
    return make_model()


@pytest.fixture
def signed_in() -> Callable[[User | None], Client]:
    """A browser in which this person is signed in; nobody when None."""

    def make(user: User | None) -> Client:
        client = Client()
        if user:
            client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


@pytest.fixture
def announcements(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is published on Valkey's channels, as (channel, message)."""
    heard: list[tuple[str, str]] = []
    publish = snapshot.client().publish

    def listen(channel: str, message: str) -> object:
        heard.append((channel, message))
        return publish(channel, message)

    monkeypatch.setattr(snapshot.client(), "publish", listen)
    return heard
