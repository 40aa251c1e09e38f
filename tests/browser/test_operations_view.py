"""The operations view in a browser: what happens at the gateway is on the page within seconds, without a reload."""

from __future__ import annotations

from typing import Any

import openai
import psycopg
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.window import overflow, sign_in
from tests.end_to_end.stack import MODEL, Stack

pytestmark = pytest.mark.browser


def number_in(cell: Locator) -> int:
    """Of a row that is there as soon as there is something to count."""
    return int(cell.inner_text()) if cell.count() else 0


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_calls_and_refusals_show_while_one_looks(
    width: int, open_window: OpenWindow, product: Stack, rows: dict[str, Any]
) -> None:
    page = open_window("oda", width=width)
    page.goto("/operator/operations?group=organization")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("#deployments tbody tr").filter(has_text=MODEL)).to_contain_text("Answers")
    # The calls of others leave the period while one looks: what counts is what only this test does.
    calls = page.locator("#groups tbody tr").filter(has_text="Demo").locator("td").nth(1)
    refused = page.locator("#refused tbody tr").filter(has_text="needs a key").locator("td").nth(1)
    calls_before, refused_before = number_in(calls), number_in(refused)

    question: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
    product.client().chat.completions.create(**question)
    with pytest.raises(openai.AuthenticationError):
        product.client(api_key="sk-tf-nobody").chat.completions.create(**question)

    expect(calls).to_have_text(str(calls_before + 1))
    expect(refused).to_have_text(str(refused_before + 1))
    expect(page.locator("#refused tbody tr").filter(has_text="Unknown or revoked key")).to_contain_text("needs a key")
    for name in ("requests", "refused"):
        assert int(page.locator(f'[data-figure="{name}"]').inner_text()) > 0
    page.get_by_role("navigation", name="Group by").get_by_role("link", name="Model").click()
    page.locator("#groups").get_by_role("link", name=MODEL).click()
    expect(page.get_by_label("Model", exact=True)).to_have_value(MODEL)
    expect(page.locator("#live")).to_have_text("Live")
    assert overflow(page) <= 0


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_whose_right_is_taken_meanwhile_reads_that(width: int, open_window: OpenWindow, product: Stack) -> None:
    shown = product.manage("operator", "--email", "otto@example.com")
    page = open_window(width=width, refusals=(403, 404))
    sign_in(page, "otto@example.com", shown.split("password: ")[1].split()[0])
    page.goto("/operator/operations")
    expect(page.locator("#live")).to_have_text("Live")
    with psycopg.connect(product.database_url) as connection:
        connection.execute("UPDATE portal_user SET is_staff = false WHERE email = 'otto@example.com'")
    expect(page.locator("#live")).to_have_text("No longer allowed")
    expect(page.locator("#live-text")).to_contain_text("not an operator's any more. The figures are of")
    assert overflow(page) <= 0
