"""By clicking: an admin invites, limits, makes a key and exports; an operator ends a month; outsiders find nothing."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NARROW, TIMEOUT_MS, WIDE, OpenWindow
from tests.browser.pages import PAGES
from tests.browser.window import download, follow, overflow, submit
from tests.end_to_end.stack import MODEL, Stack

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_an_admin_invites_limits_makes_a_key_and_exports(
    width: int, open_window: OpenWindow, product: Stack, rows: dict[str, Any], mark: str
) -> None:
    page = open_window("dee", width=width, refusals=(400,))
    page.goto(f"/o/{rows['slug']}/")
    invite(page, f"frida-{mark}@example.com")
    secret = make_key(page, f"batch {mark}")
    limit_the_key(page, f"batch {mark}")
    client = openai.OpenAI(base_url=product.api_url, api_key=secret, max_retries=0)
    question: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}
    client.chat.completions.create(**question)
    see_the_gauge_fill(page, f"batch {mark}")
    with pytest.raises(openai.RateLimitError, match="1 requests per day"):
        client.chat.completions.create(**question)
    export_the_month(page, f"batch {mark}")
    follow(page, "Audit log")
    expect(page.get_by_role("cell", name=f"frida-{mark}@example.com").first).to_be_visible()
    assert overflow(page) <= 0


def invite(page: Page, email: str) -> None:
    follow(page, "Members")
    page.get_by_role("button", name="Invite").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("E-mail address").fill(email)
    submit(dialog.get_by_role("button", name="Send the invitation"))
    expect(page.get_by_text(email).first).to_be_visible()


def make_key(page: Page, name: str) -> str:
    follow(page, "API keys")
    page.get_by_role("button", name="Create API key").first.click()
    page.get_by_label("Name").fill(name)
    submit(page.get_by_role("button", name="Create key"))
    secret = page.get_by_test_id("secret").inner_text()
    submit(page.get_by_role("dialog").get_by_role("button", name="Done"))
    return secret


def limit_the_key(page: Page, name: str) -> None:
    follow(page, "Limits")
    page.get_by_role("button", name="Set a limit").first.click()
    dialog = page.get_by_role("dialog")
    option = dialog.get_by_label("Applies to").locator("option", has_text=name).first.get_attribute("value")
    dialog.get_by_label("Applies to").select_option(option)
    dialog.get_by_label("Limits", exact=True).select_option(label="Requests per day")
    dialog.get_by_label("At most").fill("none")
    submit(dialog.get_by_role("button", name="Set the limit"))
    expect(page.locator(".field-error").filter(visible=True).first).to_be_visible()
    dialog.get_by_label("At most").fill("1")
    dialog.get_by_role("button", name="Try on last week").click()
    expect(dialog.get_by_text("No call of the last seven days comes under this limit")).to_be_visible()
    submit(dialog.get_by_role("button", name="Set the limit"))
    expect(page.get_by_text("The limit is set")).to_be_visible()


def see_the_gauge_fill(page: Page, name: str) -> None:
    """Without a reload: the page asks by itself."""
    row = page.get_by_role("row").filter(has_text=name)
    expect(row).to_contain_text("Calls are refused now, until")


def export_the_month(page: Page, name: str) -> None:
    follow(page, "Exports")
    page.get_by_label("What").select_option("usage")
    page.get_by_label("Month").fill(f"{datetime.now(UTC):%Y-%m}")
    submit(page.get_by_role("button", name="Make the file"))
    expect(page.get_by_text("The export is being made")).to_be_visible()
    expect(page.locator("#exports .spinner")).to_have_count(0)
    expect(page.locator("#exports").get_by_text("Ready").first).to_be_visible()
    lines = list(csv.DictReader(io.StringIO(download(page, "Download").decode())))
    assert any(name in line.values() for line in lines), lines[:1]


@pytest.mark.parametrize(("width", "months_back"), [(WIDE, 1), (NARROW, 2)])
def test_an_operator_ends_a_month(width: int, months_back: int, open_window: OpenWindow, rows: dict[str, Any]) -> None:
    day = datetime.now(UTC).replace(day=1)
    for _ in range(months_back):
        day = (day - timedelta(days=1)).replace(day=1)
    period = f"{day:%Y-%m}"
    page = open_window("oda", width=width)
    page.goto("/operator/")
    follow(page, "Reconciliation")
    expect(page.get_by_text("Calls compared")).to_be_visible()
    # Once the last month is closed.
    older = page.get_by_text("Close an older month")
    if older.count():
        older.click()
    page.get_by_label("Month").fill(period)
    submit(page.get_by_role("button", name="Close the month"))
    expect(page.get_by_text(f"{period} is closed.").first).to_be_visible()

    follow(page, "Invoice run")
    page.get_by_label("Month").fill(period)
    page.wait_for_url(re.compile(f"period={period}"))
    page.get_by_role("button", name=f"Run {period}").click()
    submit(page.get_by_role("dialog").get_by_role("button", name="Run the month"))
    expect(page.get_by_text("Finished").first).to_be_visible()
    if months_back == 1:
        page.get_by_role("link", name="Analytical Engines").first.click()
        expect(page.get_by_test_id("usage-exact")).to_contain_text("$")
        assert download(page, "PDF").startswith(b"%PDF-")
    assert overflow(page) <= 0


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_an_outsider_finds_none_of_it(width: int, open_window: OpenWindow, rows: dict[str, Any]) -> None:
    """Every page of an organization that is not theirs, and of the operator."""
    page = open_window("cyd", width=width, refusals=(404,))
    forbidden = [each.path for each in PAGES if "{slug}" in each.path or each.path.startswith("/operator")]
    assert len(forbidden) > 30
    answers = {path: page.request.get(path.format(**rows), timeout=TIMEOUT_MS).status for path in forbidden}
    assert set(answers.values()) == {404}, answers
    page.goto(f"/o/{rows['slug']}/")
    expect(page.get_by_role("heading", name="There is nothing here")).to_be_visible()
    assert overflow(page) <= 0
