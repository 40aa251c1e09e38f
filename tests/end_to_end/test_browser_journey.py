"""By clicking: sign up, make a key, call the model with it, see the record, try the playground, get the invoice."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.stack import MODEL, Stack

pytestmark = pytest.mark.browser

EMAIL = "ada@example.com"
PASSWORD = "correct horse battery"
QUESTION = "What is the capital of France?"
# The journey's browser must not call home; as root Chromium has no sandbox to offer.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    installed = shutil.which("chromium")
    return browser_type_launch_args | {"args": FLAGS} | ({"executable_path": installed} if installed else {})


@pytest.fixture
def page(browser: Browser, real_stack: Stack) -> Any:
    context = browser.new_context(base_url=real_stack.portal_url, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(20_000)
    expect.set_options(timeout=20_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("response", lambda answer: errors.append(answer.url) if answer.status >= 400 else None)
    yield page
    context.close()
    assert not errors, f"the pages' scripts complained: {errors}"


def test_from_sign_up_to_the_invoice(page: Page, real_stack: Stack) -> None:
    sign_up(page)
    secret = make_key(page)
    call_with(secret, real_stack)
    see_the_call(page)
    try_the_playground(page)
    balance = balance_of(page)
    sign_out(page)
    sign_in_as_operator(page, real_stack)
    preview_the_month(page)
    sign_out(page)
    sign_in(page, EMAIL, PASSWORD)
    assert balance_of(page) == balance, "a preview binds nobody"


def sign_up(page: Page) -> None:
    page.goto("/accounts/signup/")
    page.get_by_label("E-mail").fill(EMAIL)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    page.get_by_role("link", name="open the development mailbox").click()
    page.get_by_role("row", name=EMAIL).get_by_role("link").click()
    page.get_by_test_id("mail").get_by_role("link").first.click()
    page.get_by_role("button", name="Yes, confirm").click()
    expect(page.get_by_text("Credit available")).to_be_visible()
    expect(page.get_by_text("$5.00").first).to_be_visible()


def make_key(page: Page) -> str:
    page.get_by_role("link", name="API keys").click()
    page.get_by_role("button", name="Create API key").first.click()
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create key").click()
    secret = page.get_by_test_id("secret").inner_text()
    assert re.fullmatch(r"sk-tf-[0-9A-Za-z]{46}", secret)
    page.get_by_role("link", name="Quick start").last.click()
    expect(page.locator("body")).to_contain_text("/v1")
    page.get_by_role("link", name="API keys").click()
    expect(page.locator("body")).not_to_contain_text(secret)
    expect(page.locator("body")).to_contain_text(secret[:10])
    return secret


def call_with(secret: str, stack: Stack) -> None:
    with stack.client(api_key=secret).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16, stream=True
    ) as chunks:
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in answer


def see_the_call(page: Page) -> None:
    page.get_by_role("link", name="Usage").click()
    page.get_by_role("link", name="Requests", exact=True).click()
    row = page.get_by_role("row", name=re.compile(f"{MODEL}.*laptop"))
    expect(row).to_be_visible()
    expect(row).to_contain_text("$0.0000")


def try_the_playground(page: Page) -> None:
    page.get_by_role("link", name="Playground").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most output, tokens").fill("16")
    page.get_by_role("button", name=QUESTION).click()
    expect(page.get_by_role("log")).to_contain_text("Paris")
    expect(page.locator("#total-out")).not_to_have_text("0")


def balance_of(page: Page) -> str:
    page.get_by_role("link", name="Billing").click()
    balance = page.get_by_test_id("balance").inner_text()
    assert balance.startswith("$4.9999"), "the calls were taken off the credit"
    return balance


def preview_the_month(page: Page) -> None:
    page.goto("/operator/invoices")
    period = datetime.now(UTC).strftime("%Y-%m")
    page.get_by_role("button", name=f"Preview {period}").click()
    page.get_by_role("row").get_by_role("link", name="Ada's organization").click()
    exact = page.get_by_test_id("usage-exact").inner_text()
    assert re.search(r"\$0\.0000\d+", exact)
    # Headless Chromium shows a PDF instead of keeping it, so the link is followed with the browser's cookies.
    pdf = page.request.get(page.get_by_role("link", name="PDF").get_attribute("href") or "")
    assert pdf.body().startswith(b"%PDF-")


def sign_in_as_operator(page: Page, stack: Stack) -> None:
    printed = re.search(r"Operator: (\S+)\s+password: (\S+)", stack.output)
    assert printed
    sign_in(page, printed[1], printed[2])


def sign_in(page: Page, email: str, password: str) -> None:
    page.goto("/accounts/login/")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda address: "/accounts/login" not in address)


def sign_out(page: Page) -> None:
    page.goto("/accounts/logout/")
    page.get_by_role("button", name="Sign out").click()
