"""The operations view in a browser: what happens at the gateway is on the page within seconds, without a reload."""

from __future__ import annotations

import json
from typing import Any

import openai
import psycopg
import pytest
from playwright.sync_api import Locator, WebSocketRoute, expect

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.window import overflow, sign_in
from tests.end_to_end.stack import MODEL, Stack

pytestmark = pytest.mark.browser
NOTE_STATES = """
() => {
  const live = document.getElementById("live");
  window.states = [];
  new MutationObserver(() => window.states.push(live.textContent)).observe(live, { childList: true });
}
"""


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


def test_each_state_of_the_service_and_of_the_connection_is_told(
    open_window: OpenWindow, product: Stack, rows: dict[str, Any]
) -> None:
    """What the socket says is told here, so that each state is there for as long as one looks."""
    page = open_window("oda")
    view = page.request.get("/operator/operations/data.json").json()
    present = view["present"] | {"enabled": 1, "engines": 1, "answering": 1, "sampled_at": view["now"]}
    sockets: list[WebSocketRoute] = []

    def push(**changes: Any) -> None:
        sockets[-1].send(json.dumps(view | {"present": present | changes}))

    def serve(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.on_message(lambda _: push())

    page.route_web_socket("**/portal-api/operations", serve)
    page.goto("/operator/operations")
    live, text = page.locator("#live"), page.locator("#live-text")
    expect(live).to_have_text("Live")
    push(answering=0)
    expect(live).to_have_text("No engine answers")
    expect(text).to_contain_text("Calls are refused until one is back. The figures are of")
    push(sampled_at=None)
    expect(live).to_have_text("No samples")
    push(enabled=0, engines=0, answering=0, sampled_at=None, deployments=[])
    expect(live).to_have_text("Nothing to measure")
    expect(page.locator("#deployments tbody")).to_contain_text("No deployment")
    push(pages_used=1, pages_total=8, three_bit_pages_used=3, three_bit_pages_total=9)
    expect(live).to_have_text("Live")
    expect(page.locator(".stat").filter(has_text="KV cache")).to_contain_text("1 of 8 pages, 3 of 9 in three bits")
    # A connection that breaks comes back by itself, and the page says which it is.
    page.evaluate(NOTE_STATES)
    sockets[-1].close()
    page.wait_for_function("() => window.states.at(-1) === 'Live' && window.states.includes('Not connected')")
    assert len(sockets) == 2
