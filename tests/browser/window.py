"""What several journeys do in a window: sign in and out, measure, download."""

from __future__ import annotations

import re
from urllib.parse import urljoin

from playwright.sync_api import Locator, Page, expect

from tests.factories.password import PASSWORD

# A page that is there and whose scripts are not yet takes no click: what they make of it would be lost.
CLICKS_WAIT = """
(() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(":root { pointer-events: none !important; }");
  document.adoptedStyleSheets = [sheet];
  document.addEventListener("DOMContentLoaded", () => (document.adoptedStyleSheets = []));
})();
"""
# Nothing is fetched, swapped in or faded, and each part has said once what it has to say.
IS_STILL = """
() => document.readyState === "complete" && document.fonts.status === "loaded"
  && !document.querySelector("[aria-busy=true], .htmx-request, .htmx-swapping, .htmx-settling, .htmx-added")
  && document.getAnimations().every(
    (it) => it.playState !== "running" || it.effect.getTiming().iterations === Infinity)
"""


def submit(button: Locator) -> None:
    """Press what sends a form; return when the page that answers is there.

    The page that is left may say already what the next one is asked for, and a click may still meet it.
    """
    with button.page.expect_navigation():
        button.click()


def sign_in(page: Page, email: str, password: str = PASSWORD) -> None:
    """In whatever language the browser asks for."""
    page.goto("/accounts/login/")
    page.locator("input[name=login]").fill(email)
    page.locator("input[name=password]").fill(password)
    submit(page.locator("form:has(input[name=password]) button[type=submit]").first)
    page.wait_for_url(lambda address: "/accounts/login" not in address)


def sign_out(page: Page) -> None:
    page.goto("/accounts/logout/")
    submit(page.get_by_role("button", name="Sign out"))
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()


def follow(page: Page, name: str) -> None:
    """A link of the navigation, which a narrow window keeps in a drawer."""
    menu = page.get_by_role("button", name="Menu", exact=True)
    if menu.is_visible():
        menu.click()
    link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True)
    address = urljoin(page.url, link.get_attribute("href"))
    link.click()
    # The page that is left may have a button or a figure of the same name.
    page.wait_for_url(re.compile(re.escape(address) + r"([?#]|$)"))


def download(page: Page, name: str) -> bytes:
    with page.expect_download() as started:
        page.get_by_role("link", name=name).first.click()
    return started.value.path().read_bytes()


def wait_until_still(page: Page) -> None:
    page.wait_for_function(IS_STILL)


def wait_until_asked_again(page: Page) -> None:
    """A part that asks for itself has done so once more, and its answer is in its place."""
    page.evaluate("new Promise((done) => document.addEventListener('htmx:afterRequest', () => done(), { once: true }))")


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    found: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found
