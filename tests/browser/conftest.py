"""One running product for all browser tests, and Chromium windows that hear every complaint."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import launch_options
from tests.browser.seed import ENVIRONMENT, seeded_by
from tests.browser.window import CLICKS_WAIT, sign_in
from tests.end_to_end.stack import PATIENCE_S, TEST_TIMEOUT_S, Stack

TIMEOUT_MS = PATIENCE_S * 1000
WIDE, NARROW = 1280, 390

OpenWindow = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return browser_type_launch_args | launch_options()


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("product") / "state", extra_environment=ENVIRONMENT)
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="session")
def rows(product: Stack) -> dict[str, object]:
    """What the cast of tests/factories/portal.py has in the product."""
    return seeded_by(product)


@pytest.fixture
def mark() -> str:
    """For names of what a test makes: a second try meets what the first one left."""
    return uuid.uuid4().hex[:6]


@pytest.fixture
def open_window(browser: Browser, product: Stack) -> Iterator[OpenWindow]:
    """Opens a fresh browser window, signed in as someone of the cast when `who` is given.

    A complaint on its console, such as of the Content Security Policy, fails the test; `refusals` are the statuses that
    are meant to come.
    """
    contexts, complaints = [], []
    expect.set_options(timeout=TIMEOUT_MS)

    def hear(page: Page, text: str) -> None:
        complaints.append(f"{page.url}: {text}")

    def open_(who: str = "", *, width: int = WIDE, refusals: tuple[int, ...] = (), **options: Any) -> Page:
        options = {"locale": "en-GB", **options}
        context = browser.new_context(
            base_url=product.portal_url, viewport={"width": width, "height": 860}, reduced_motion="reduce", **options
        )
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(CLICKS_WAIT)
        page = context.new_page()
        page.on("pageerror", lambda error: hear(page, str(error)))
        # The browser itself reports the status of a page or call that is refused, and htmx that of a part.
        words = ("status of", "Error Code", "response code:")
        expected = tuple(f"{each} {status}" for status in refusals for each in words)
        page.on(
            "console",
            lambda message: (
                hear(page, message.text)
                if message.type == "error" and not any(text in message.text for text in expected)
                else None
            ),
        )
        if who:
            sign_in(page, f"{who}@example.com")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints, "\n".join(complaints)
