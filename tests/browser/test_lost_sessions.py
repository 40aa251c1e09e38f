"""A session that ends while a form is open: the page says so, and after signing in again what was typed is there."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenWindow
from tests.browser.window import submit, wait_until_asked_again
from tests.factories.password import PASSWORD

pytestmark = pytest.mark.browser


def fill(page: Page) -> None:
    page.get_by_role("button", name="Set a limit").first.click()
    form = page.get_by_role("dialog")
    form.get_by_label("Limits").select_option("Tokens per day")
    form.get_by_label("At most").fill("987654")
    form.get_by_text("One model, what happens without room").click()
    form.get_by_label("Reason").fill("End of the quarter")


def expect_typed(page: Page) -> None:
    form = page.get_by_role("dialog")
    expect(form).to_contain_text("What you typed is here again")
    expect(form.get_by_label("Limits")).to_have_value("tokens:day")
    expect(form.get_by_label("At most")).to_have_value("987654")
    expect(form.get_by_label("Reason")).to_have_value("End of the quarter")


def sign_in_again(page: Page) -> None:
    page.get_by_label("E-mail").fill("dee@example.com")
    page.get_by_label("Password").fill(PASSWORD)
    submit(page.get_by_role("button", name="Sign in"))


def test_nothing_typed_is_lost(open_window: OpenWindow, rows: dict[str, object]) -> None:
    page = open_window("dee", refusals=(401, 403))
    page.goto(f"/o/{rows['slug']}/limits")
    fill(page)
    page.context.clear_cookies(name="sessionid")
    # The gauges ask every three seconds; the form is not taken away from under the reader.
    expect(page.get_by_role("dialog")).to_contain_text("You are signed out")
    submit(page.get_by_role("button", name="Set the limit"))
    expect(page.get_by_text("What you typed is kept")).to_be_visible()
    sign_in_again(page)
    expect_typed(page)
    # Signed out and in again in another window: the form's token is an old one.
    page.context.clear_cookies(name="csrftoken")
    other = page.context.new_page()
    other.goto(f"/o/{rows['slug']}/limits")
    other.close()
    submit(page.get_by_role("button", name="Set the limit"))
    page.get_by_role("link", name="Back to the form").click()
    expect_typed(page)
    submit(page.get_by_role("button", name="Set the limit"))
    expect(page.get_by_text("The limit is set")).to_be_visible()
    page.reload()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_nothing_typed_is_lost_of_a_form_that_was_refused(open_window: OpenWindow, rows: dict[str, object]) -> None:
    page = open_window("dee", refusals=(400, 401, 403))
    page.goto(f"/o/{rows['slug']}/limits")
    fill(page)
    page.get_by_role("dialog").get_by_label("At most").fill("many")
    submit(page.get_by_role("button", name="Set the limit"))
    expect(page.get_by_role("dialog")).to_contain_text("Enter a whole number")
    page.get_by_role("dialog").get_by_label("At most").fill("987654")
    page.context.clear_cookies(name="sessionid")
    submit(page.get_by_role("button", name="Set the limit"))
    expect(page.get_by_text("What you typed is kept")).to_be_visible()
    sign_in_again(page)
    expect_typed(page)


def test_a_limit_that_another_admin_sets_is_told(open_window: OpenWindow, rows: dict[str, object]) -> None:
    mine, theirs = open_window("ada"), open_window("dee")
    for page in (mine, theirs):
        page.goto(f"/o/{rows['slug']}/limits")
    theirs.get_by_role("button", name="Set a limit").first.click()
    theirs.get_by_role("dialog").get_by_label("Limits").select_option("Output tokens per minute")
    theirs.get_by_role("dialog").get_by_label("At most").fill("456789")
    submit(theirs.get_by_role("button", name="Set the limit"))
    expect(mine.get_by_text("Limits were set or removed since")).to_be_visible()
    link = mine.get_by_role("link", name="Show them as they are now")
    link.focus()
    # What is told once more is the same, and stays under whoever is about to press it.
    wait_until_asked_again(mine)
    expect(link).to_be_focused()
    link.click()
    expect(mine.get_by_text("456,789").first).to_be_visible()
