"""By clicking, as an admin: people come and go, a webhook is proved with a receiver of its own, an alert and a limit
change, and the audit log tells of it all, in German too."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.seed_administration import receiver
from tests.browser.window import follow, overflow, submit

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_an_admin_at_work(width: int, open_window: OpenWindow, rows: dict[str, Any], mark: str) -> None:
    page = open_window("dee", width=width, refusals=(400,))
    page.goto(f"/o/{rows['slug']}/")
    invitation_comes_and_goes(page, f"zoe-{mark}@example.com")
    with receiver() as address:
        webhook_is_proved(page, f"bot {mark}", f"{address}/hook")
    budget_is_watched(page, f"{width},50", f"${width:,}.50")
    limit_is_tried_from_its_row(page)
    chargeback_says_why_not(page)
    audit_log_tells(page, f"bot {mark}")
    reader = open_window(locale="de-DE", storage_state=page.context.storage_state())
    reader.goto(page.url)
    expect(reader.get_by_text(f"dee@example.com entfernte den Webhook bot {mark}").first).to_be_visible()
    assert overflow(page) <= 0


def button_of(page: Page, row: str, name: str) -> Locator:
    return page.get_by_role("row").filter(has_text=row).get_by_role("button", name=name)


def invitation_comes_and_goes(page: Page, email: str) -> None:
    follow(page, "Members")
    page.get_by_role("button", name="Invite").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("E-mail address").fill(email)
    dialog.get_by_label("Viewer").check()
    submit(dialog.get_by_role("button", name="Send the invitation"))
    expect(page.get_by_role("row").filter(has_text=email)).to_contain_text("Viewer")
    submit(button_of(page, email, "Send again"))
    expect(page.get_by_text(f"An invitation is on its way to {email}")).to_be_visible()
    button_of(page, email, "Withdraw").click()
    submit(page.get_by_role("dialog").get_by_role("button", name="Withdraw"))
    expect(page.get_by_text(f"The invitation of {email} is withdrawn")).to_be_visible()


def webhook_is_proved(page: Page, name: str, address: str) -> None:
    follow(page, "Alerts")
    page.get_by_role("link", name="Webhooks", exact=True).click()
    page.wait_for_url("**/alerts/webhooks")
    page.get_by_role("button", name="Add a webhook").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill(address)
    dialog.get_by_label("Description").fill(name)
    submit(dialog.get_by_role("button", name="Add"))
    assert page.get_by_test_id("secret").inner_text().startswith("whsec_")
    # Neither the address nor a reload makes a second one.
    assert page.url.endswith("/alerts/webhooks")
    page.reload()
    expect(page.get_by_role("row").filter(has_text=name)).to_have_count(1)
    button_of(page, name, "Change").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill("ftp://example.com/")
    submit(dialog.get_by_role("button", name="Save"))
    expect(page.get_by_role("dialog").locator(".field-error")).to_contain_text("must begin with")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    submit(button_of(page, name, "Send a test"))
    # Without a reload: the page asks by itself.
    expect(page.locator("#delivery")).to_contain_text("Delivered")
    expect(page.locator("#delivery")).to_contain_text("204")
    submit(page.get_by_role("button", name="Send again"))
    expect(page.locator("#delivery")).to_contain_text(re.compile("[1-9] of 9"))
    expect(page.locator("#delivery")).to_contain_text("Delivered")
    page.get_by_role("link", name="Deliveries", exact=True).first.click()
    page.wait_for_url("**/alerts/deliveries")
    page.get_by_role("link", name="Webhooks", exact=True).click()
    page.wait_for_url("**/alerts/webhooks")
    button_of(page, name, "Remove").click()
    submit(page.get_by_role("dialog").get_by_role("button", name="Remove the webhook"))
    expect(page.get_by_text("The webhook is removed")).to_be_visible()


def budget_is_watched(page: Page, typed: str, shown: str) -> None:
    page.get_by_role("link", name="Alerts", exact=True).last.click()
    page.wait_for_url("**/alerts")
    page.get_by_role("button", name="Set an alert").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Watch").select_option("failures:")
    expect(dialog.get_by_label("Amount")).to_be_hidden()
    dialog.get_by_label("Watch").select_option("budget:day")
    dialog.get_by_label("Amount").fill(typed)
    submit(dialog.get_by_role("button", name="Set the alert"))
    row = page.get_by_role("row").filter(has_text=f"Budget of {shown} per day")
    expect(row).to_contain_text(f"of {shown}")
    row.get_by_role("button", name="Remove").click()
    submit(page.get_by_role("dialog").get_by_role("button", name="Remove the alert"))
    expect(page.get_by_text("The alert is removed")).to_be_visible()


def limit_is_tried_from_its_row(page: Page) -> None:
    follow(page, "Limits")
    button_of(page, "Spend per month", "Change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("At most")).to_have_value("2")
    dialog.get_by_label("At most").fill("0.01")
    dialog.get_by_role("button", name="Try on last week").click()
    expect(dialog.get_by_text("It would have refused")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()


def chargeback_says_why_not(page: Page) -> None:
    follow(page, "Exports")
    page.get_by_label("What").select_option("chargeback")
    expect(page.get_by_text("Only some requests")).to_be_hidden()
    submit(page.get_by_role("button", name="Make the file"))
    expect(page.locator("#exports").get_by_text("is not issued yet").first).to_be_visible()
    expect(page.locator("#exports").get_by_role("button", name="Make it again").first).to_be_visible()


def audit_log_tells(page: Page, name: str) -> None:
    follow(page, "Audit log")
    page.get_by_label("About").select_option(label="Webhooks")
    page.wait_for_url("**about=webhook**")
    expect(page.get_by_text(f"dee@example.com removed the webhook {name}").first).to_be_visible()
