"""By clicking: sign up, make a key, call the model, see record and cost, try the playground, get the invoice."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.window import download, follow, sign_in, sign_out, submit
from tests.end_to_end.stack import MODEL, PATIENCE_S, Stack

pytestmark = pytest.mark.browser

PASSWORD = "correct horse battery"
QUESTION = "What is the capital of France?"
# Two minutes are promised to a person. What a machine takes is written down, and no promise of the product's.
MOST_PAGES = 12


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_from_sign_up_to_the_invoice(
    width: int, open_window: OpenWindow, product: Stack, mark: str, record_property: pytest.RecordProperty
) -> None:
    email = f"grace-{mark}@example.com"
    page = open_window(width=width)
    seen: list[str] = []
    page.on("framenavigated", lambda frame: seen.append(frame.url))
    began = time.monotonic()
    sign_up(page, email)
    secret = make_key(page)
    call_with(secret, product)
    record_property("sign_up_to_first_token_s", round(time.monotonic() - began, 1))
    assert len(seen) <= MOST_PAGES, seen
    try_the_playground(page)
    cost = costs_of_both_calls(page)
    balance = balance_of(page)
    assert balance == Decimal(5) - cost
    sign_out(page)

    sign_in_as_operator(page, product)
    preview_the_month(page, email, cost)
    sign_out(page)

    sign_in(page, email, PASSWORD)
    assert balance_of(page) == balance, "a preview takes nothing"
    see_the_invoice(page, cost)


def sign_up(page: Page, email: str) -> None:
    page.goto("/")
    page.get_by_role("link", name="Sign up").first.click()
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    submit(page.get_by_role("button", name="Sign up"))
    page.get_by_role("link", name="open the development mailbox").click()
    page.get_by_role("row", name=email).get_by_role("link").first.click()
    page.get_by_test_id("mail").get_by_role("link").first.click()
    submit(page.get_by_role("button", name="Yes, confirm"))
    expect(page.get_by_role("heading", name="Get started")).to_be_visible()
    expect(page.get_by_text("You have $5.00 of credit")).to_be_visible()


def make_key(page: Page) -> str:
    page.get_by_role("link", name="Create a key").click()
    page.get_by_label("Name").fill("laptop")
    submit(page.get_by_role("button", name="Create key"))
    secret = page.get_by_test_id("secret").inner_text()
    assert re.fullmatch(r"sk-tf-[0-9A-Za-z]{46}", secret)
    expect(page.get_by_role("dialog")).to_contain_text(f'API_KEY="{secret}"')

    page.get_by_role("dialog").get_by_role("link", name="Quick start").click()
    for tab, text in (("curl", "curl -N"), ("Python", "OpenAI("), ("Node", "new OpenAI"), ("Anthropic", "Anthropic(")):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tabpanel").first).to_contain_text(text)
        expect(page.get_by_role("tabpanel").first).to_contain_text(page.url.split("/o/")[0])

    follow(page, "API keys")
    expect(page.locator("body")).to_contain_text(secret[:11])
    expect(page.locator("body")).not_to_contain_text(secret)
    return secret


def call_with(secret: str, stack: Stack) -> None:
    """What the snippet of the official client does."""
    with stack.client(api_key=secret).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16, stream=True
    ) as chunks:
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in answer


def try_the_playground(page: Page) -> None:
    follow(page, "Playground")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most output, tokens").fill("24")
    page.get_by_role("button", name=QUESTION).click()
    expect(page.get_by_role("log")).to_contain_text("Paris")
    expect(page.get_by_role("log")).to_contain_text("first token after")
    expect(page.locator("#total-out")).not_to_have_text("0")


def costs_of_both_calls(page: Page) -> Decimal:
    """Σ of the usage page's cost column, once both records are final; the playground printed the same for its call."""
    printed = page.locator("#total-cost").inner_text()
    follow(page, "Usage")
    page.get_by_role("link", name="Requests", exact=True).click()
    rows = page.get_by_role("row", name=re.compile(MODEL))
    expect(rows).to_have_count(2)
    by_key = {}
    for key in ("laptop", "Playground"):
        row = rows.filter(has_text=key)
        deadline = time.monotonic() + PATIENCE_S
        while "Running" in row.inner_text():
            assert time.monotonic() < deadline, "the record is not finished"
            page.wait_for_timeout(250)
            page.reload()
        by_key[key] = row.get_by_role("cell").last.inner_text()
    assert by_key["Playground"] == printed
    rows.filter(has_text="laptop").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Cost")).to_be_visible()
    expect(page.locator("body")).to_contain_text("tokens per second after the first")
    return sum((Decimal(text.lstrip("$")) for text in by_key.values()), Decimal(0))


def balance_of(page: Page) -> Decimal:
    follow(page, "Billing")
    return Decimal(page.get_by_test_id("balance").inner_text().split()[0].lstrip("$"))


def preview_the_month(page: Page, email: str, cost: Decimal) -> None:
    follow(page, "Invoice run")
    period = datetime.now(UTC).strftime("%Y-%m")
    submit(page.get_by_role("button", name=f"Preview {period}"))
    expect(page.get_by_text("Finished")).to_be_visible()
    page.get_by_role("link", name=f"{email.partition('@')[0]}'s organization").click()
    assert Decimal(page.get_by_test_id("usage-exact").inner_text().lstrip("$")) == cost
    assert download(page, "PDF").startswith(b"%PDF-")


def see_the_invoice(page: Page, cost: Decimal) -> None:
    page.get_by_role("row", name="Preview").get_by_role("link").first.click()
    expect(page.get_by_role("row", name=re.compile("output tokens"))).to_be_visible()
    assert Decimal(page.get_by_test_id("usage-exact").inner_text().lstrip("$")) == cost
    assert download(page, "PDF").startswith(b"%PDF-")


def sign_in_as_operator(page: Page, stack: Stack) -> None:
    """With the password that the first start printed, once."""
    printed = re.search(r"Operator: (\S+)\s+password: (\S+)", stack.output)
    assert printed
    sign_in(page, printed[1], printed[2])
    page.goto("/operator/")
