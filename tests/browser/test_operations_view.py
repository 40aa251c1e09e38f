"""The operations view in a browser: what happens at the gateway is on the page within seconds, without a reload."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.window import overflow
from tests.end_to_end.stack import MODEL, Stack

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_calls_and_refusals_show_while_one_looks(
    width: int, open_window: OpenWindow, product: Stack, rows: dict[str, Any]
) -> None:
    page = open_window("oda", width=width)
    page.goto("/operator/operations")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#deployments tbody tr").filter(has_text=MODEL)).to_contain_text("Answers")
    requests, refused = page.locator('[data-figure="requests"]'), page.locator('[data-figure="refused"]')
    requests_before, refused_before = int(requests.inner_text()), int(refused.inner_text())

    question: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
    product.client().chat.completions.create(**question)
    with pytest.raises(openai.AuthenticationError):
        product.client(api_key="sk-tf-nobody").chat.completions.create(**question)

    expect(requests).to_have_text(str(requests_before + 1))
    expect(refused).to_have_text(str(refused_before + 1))
    expect(page.locator("#refused tbody tr").filter(has_text="Unknown API key")).to_contain_text("needs a key")
    page.locator("#groups").get_by_role("link", name=MODEL).click()
    expect(page.get_by_label("Model", exact=True)).to_have_value(MODEL)
    expect(page.locator("#live")).to_have_text("Live")
    assert overflow(page) <= 0
