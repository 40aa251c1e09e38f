"""Each journey by keyboard alone: every stop shows the focus, dialogs and the drawer keep it and give it back."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import NARROW, OpenWindow
from tests.browser.window import wait_until_asked_again
from tests.factories.password import PASSWORD

pytestmark = pytest.mark.browser

MOST_STOPS = 160
# Where the focus is and whether it shows; on the page itself it has nothing to show.
FOCUS = """
() => {
  const it = document.activeElement;
  if (!it || it === document.body) return { shows: true, name: "", inDialog: false };
  const style = getComputedStyle(it);
  const box = it.getBoundingClientRect();
  const shows = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.height > 0;
  const isIn = (selector) => it.closest(selector) !== null;
  return { shows, name: it.outerHTML.slice(0, 120), inDialog: isIn("dialog[open]"), inDrawer: isIn("#sidebar") };
}
"""


class Keyboard:
    """Reaches things as a person without a pointer does."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def stop(self, key: str = "Tab") -> dict[str, Any]:
        """One step on; what has the focus then, which must show it."""
        self.press(key)
        focus: dict[str, Any] = self.page.evaluate(FOCUS)
        assert focus["shows"], f"no visible focus on {self.page.url}: {focus['name']}"
        return focus

    def reach(self, target: Locator, key: str = "Tab") -> None:
        expect(target).to_be_visible()
        # Until its scripts run, a page makes nothing of keys.
        self.page.wait_for_load_state("domcontentloaded")
        for _ in range(MOST_STOPS):
            if target.evaluate("it => it === document.activeElement"):
                return
            self.stop(key)
        raise AssertionError(f"{target} is not reached within {MOST_STOPS} stops on {self.page.url}")

    def enter(self, target: Locator) -> None:
        self.reach(target)
        self.press("Enter")

    def write(self, target: Locator, text: str) -> None:
        self.reach(target)
        self.press("ControlOrMeta+a")
        self.page.keyboard.type(text)

    def choose(self, target: Locator, start: str) -> None:
        """An option of a closed select, by arrows: letters only count together when they come within a second."""
        self.reach(target)
        self.press("Home")
        for _ in range(target.locator("option").count()):
            if target.locator("option:checked").inner_text().startswith(start):
                return
            self.press("ArrowDown")
        raise AssertionError(f"no option begins with {start}")

    def pick(self, group: Locator, name: str) -> None:
        """One of several: the group is one stop, and arrows go through it."""
        self.reach(group.get_by_role("radio", checked=True))
        wanted = group.get_by_role("radio", name=name)
        for _ in range(group.get_by_role("radio").count()):
            if wanted.is_checked():
                return
            self.press("ArrowDown")
        expect(wanted).to_be_checked()


@pytest.fixture
def signed_in(open_window: OpenWindow) -> Any:
    def open_(who: str, **options: Any) -> Keyboard:
        page = open_window(refusals=(400,), **options)
        page.goto("/accounts/login/")
        keyboard = Keyboard(page)
        keyboard.write(page.get_by_label("E-mail"), f"{who}@example.com")
        keyboard.write(page.get_by_label("Password"), PASSWORD)
        keyboard.press("Enter")
        page.wait_for_url(lambda address: "/accounts/login" not in address)
        return keyboard

    return open_


def pages_of(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Pages")


def keeps_the_focus(keyboard: Keyboard, dialog: Locator, opener: Locator) -> None:
    """Round the dialog and out by Escape: the page behind is never reached, and the opener has the focus again."""
    expect(dialog).to_be_visible()
    stops = [
        keyboard.stop() for _ in range(2 * dialog.locator("a, button, input, select, textarea, summary").count() + 4)
    ]
    assert any(focus["inDialog"] for focus in stops)
    assert [focus["name"] for focus in stops if focus["name"] and not focus["inDialog"]] == []
    keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()


def test_a_developer(signed_in: Any, rows: dict[str, Any]) -> None:
    keyboard = signed_in("ben")
    page: Page = keyboard.page
    # Past the navigation, and on from there.
    keyboard.stop()
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    keyboard.press("Enter")
    page.wait_for_url("**#main")
    keyboard.stop()
    assert page.locator("main :focus").count() == 1
    # A chart.
    errors = page.get_by_role("button", name="Errors")
    keyboard.reach(errors)
    keyboard.press("Space")
    expect(errors).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-legend]")).to_contain_text("Failed")
    # A program to copy.
    keyboard.enter(pages_of(page).get_by_role("link", name="Quick start"))
    page.wait_for_url("**/quickstart")
    tabs = page.get_by_role("tab")
    keyboard.reach(tabs.first)
    keyboard.stop("ArrowRight")
    expect(tabs.nth(1)).to_be_focused()
    expect(page.get_by_role("tabpanel").first).to_contain_text("OpenAI(")
    # A key.
    keyboard.enter(pages_of(page).get_by_role("link", name="API keys"))
    page.wait_for_url("**/keys")
    opener = page.get_by_role("button", name="Create API key").first
    keyboard.enter(opener)
    dialog = page.get_by_role("dialog")
    keeps_the_focus(keyboard, dialog, opener)
    keyboard.press("Enter")
    expect(dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("typed")
    keyboard.press("Enter")
    secret = page.get_by_test_id("secret")
    expect(secret).to_be_visible()
    # It is shown once: Escape does not throw it away.
    keyboard.press("Escape")
    expect(secret).to_be_visible()
    keyboard.enter(page.get_by_role("dialog").get_by_role("button", name="Done"))
    expect(secret).to_have_count(0)
    expect(page.get_by_role("link", name="typed").first).to_be_visible()
    # A first answer.
    keyboard.enter(pages_of(page).get_by_role("link", name="Playground"))
    page.wait_for_url("**/playground")
    keyboard.reach(page.get_by_label("Temperature"))
    keyboard.press("Home")
    expect(page.locator("#temperature-value")).to_have_text("0")
    keyboard.write(page.get_by_label("Most output, tokens"), "8")
    keyboard.write(page.get_by_label("Message", exact=True), "Name a colour.")
    keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("first token after")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    # What it cost.
    keyboard.enter(pages_of(page).get_by_role("link", name="Usage"))
    page.wait_for_url("**/usage")
    keyboard.choose(page.get_by_label("Split by"), "By API")
    expect(page).to_have_url(re.compile("split=api_key"))
    keyboard.enter(page.get_by_role("link", name="Requests", exact=True))
    page.wait_for_url("**/requests")
    keyboard.enter(page.get_by_role("table").get_by_role("link").first)
    expect(page.get_by_role("heading", name="Timing")).to_be_visible()


def test_an_admin_and_the_menus(signed_in: Any, rows: dict[str, Any], mark: str) -> None:
    keyboard = signed_in("dee")
    page: Page = keyboard.page
    account = page.locator(".sidebar-foot summary")
    keyboard.enter(account)
    theme = page.get_by_role("button", name="Theme")
    keyboard.enter(theme)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    keyboard.press("Escape")
    expect(account).to_be_focused()
    expect(theme).to_be_hidden()
    # A menu that is left closes.
    keyboard.press("Enter")
    expect(theme).to_be_visible()
    keyboard.reach(pages_of(page).get_by_role("link", name="Members"), "Shift+Tab")
    expect(theme).to_be_hidden()
    keyboard.press("Enter")
    page.wait_for_url("**/members")
    opener = page.get_by_role("button", name="Invite").first
    keyboard.enter(opener)
    dialog = page.get_by_role("dialog")
    keeps_the_focus(keyboard, dialog, opener)
    keyboard.press("Enter")
    keyboard.write(dialog.get_by_label("E-mail address"), f"gus-{mark}@example.com")
    keyboard.pick(dialog.get_by_role("group", name="Role"), "Viewer")
    keyboard.enter(dialog.get_by_role("button", name="Send the invitation"))
    expect(page.get_by_text(f"gus-{mark}@example.com").first).to_be_visible()
    keyboard.enter(pages_of(page).get_by_role("link", name="Limits"))
    page.wait_for_url("**/limits")
    keyboard.enter(page.get_by_role("button", name="Set a limit").first)
    keyboard.choose(dialog.get_by_label("Limits", exact=True), "Spend per w")
    keyboard.write(dialog.get_by_label("At most"), "many")
    keyboard.press("Enter")
    # The error stands at its field, which says so to those who do not see it.
    field = page.get_by_role("dialog").get_by_label("At most")
    expect(field).to_have_attribute("aria-invalid", "true")
    keyboard.write(field, "75")
    keyboard.press("Enter")
    expect(page.get_by_text("The limit is set")).to_be_visible()


def test_an_operator_ends_a_month(signed_in: Any, rows: dict[str, Any]) -> None:
    day = (datetime.now(UTC).replace(day=1) - timedelta(days=70)).replace(day=1)
    keyboard = signed_in("oda")
    page: Page = keyboard.page
    page.goto("/operator/")
    keyboard.enter(pages_of(page).get_by_role("link", name="Reconciliation"))
    page.wait_for_url("**/reconciliation")
    # Once the last month is closed.
    older = page.get_by_text("Close an older month")
    if older.count():
        keyboard.enter(older)
    month = page.get_by_label("Month")
    keyboard.reach(month)
    # Its parts: the month and the year; without one of them it has no value.
    keyboard.press("ArrowDown")
    keyboard.stop()
    page.keyboard.type(f"{day:%Y}")
    keyboard.press("Shift+Tab")
    for _ in range(12):
        if month.input_value()[5:] == f"{day:%m}":
            break
        keyboard.press("ArrowDown")
    expect(month).to_have_value(f"{day:%Y-%m}")
    keyboard.enter(page.get_by_role("button", name="Close the month"))
    expect(page.get_by_text(f"{day:%Y-%m} is closed.").first).to_be_visible()
    page.goto(f"/operator/invoices?period={day:%Y-%m}")
    opener = page.get_by_role("button", name=f"Run {day:%Y-%m}")
    keyboard.enter(opener)
    dialog = page.get_by_role("dialog")
    keeps_the_focus(keyboard, dialog, opener)
    keyboard.press("Enter")
    keyboard.enter(dialog.get_by_role("button", name="Run the month"))
    expect(page.get_by_text("Finished").first).to_be_visible()


def test_jumping_to_a_page_and_to_a_request(signed_in: Any, rows: dict[str, Any]) -> None:
    keyboard = signed_in("ben")
    page: Page = keyboard.page
    jump = page.get_by_role("dialog", name="Jump to")
    keyboard.press("ControlOrMeta+k")
    expect(jump).to_be_visible()
    page.keyboard.type("limi")
    keyboard.press("Enter")
    page.wait_for_url("**/limits")
    keyboard.press("ControlOrMeta+k")
    page.keyboard.type(str(rows["request_id"]))
    keyboard.press("ArrowDown")
    expect(jump.get_by_role("link", name="Open the request of this id")).to_be_focused()
    keyboard.press("Enter")
    page.wait_for_url(f"**/usage/requests/{rows['request_id']}")
    keyboard.press("ControlOrMeta+k")
    page.keyboard.type("no page is called so")
    expect(jump.get_by_text("Nothing of that name.")).to_be_visible()
    keyboard.press("Escape")
    expect(jump).to_be_hidden()


def test_a_part_that_asks_again_keeps_the_focus(signed_in: Any, rows: dict[str, Any]) -> None:
    keyboard = signed_in("cyd")
    page: Page = keyboard.page
    page.goto(f"/o/{rows['new_slug']}/")
    wait_until_asked_again(page)
    link = page.locator("#checklist").get_by_role("link").first
    keyboard.reach(link)
    wait_until_asked_again(page)
    expect(link).to_be_focused()


def test_the_drawer_of_a_narrow_window(signed_in: Any, rows: dict[str, Any]) -> None:
    keyboard = signed_in("ben", width=NARROW)
    page: Page = keyboard.page
    menu = page.get_by_role("button", name="Menu", exact=True)
    keyboard.enter(menu)
    stops = [keyboard.stop() for _ in range(40)]
    assert [focus["name"] for focus in stops if focus["name"] and not focus["inDrawer"]] == []
    keyboard.press("Escape")
    expect(menu).to_be_focused()
    expect(pages_of(page)).to_be_hidden()
    keyboard.press("Enter")
    keyboard.enter(pages_of(page).get_by_role("link", name="Usage"))
    page.wait_for_url("**/usage")
    expect(page.get_by_role("heading", name="Usage", level=1)).to_be_visible()
