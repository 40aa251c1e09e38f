"""A security key by clicking: added, asked for at the next sign-in, taken away. And the code that an app is shown."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenWindow
from tests.browser.window import submit
from tests.end_to_end.stack import Stack
from tests.factories.portal import PASSWORD

pytestmark = pytest.mark.browser

WHO = "cyd@example.com"


def plug_in_a_key(page: Page) -> None:
    """Chromium's own virtual key, which is touched as soon as it is asked."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    options: dict[str, Any] = {
        "protocol": "ctap2",
        "transport": "usb",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})


def sign_out(page: Page, site: str) -> None:
    page.goto(f"{site}/accounts/logout/")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("link", name="Sign in").first).to_be_visible()


def enter_password(page: Page, site: str) -> None:
    page.goto(f"{site}/accounts/login/")
    page.get_by_label("E-mail").fill(WHO)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def test_a_security_key_is_added_asked_for_and_taken_away(
    open_window: OpenWindow, product: Stack, rows: dict[str, Any]
) -> None:
    # Browsers know security keys on this name of the machine only, and on https.
    site = product.portal_url.replace("127.0.0.1", "localhost")
    page = open_window()
    plug_in_a_key(page)
    enter_password(page, site)
    page.wait_for_url(lambda address: "/o/" in address)
    # Before a second factor is added the password is asked for again.
    page.goto(f"{site}/accounts/2fa/webauthn/add/")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_label("Name").fill("Blue key")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_text("Recovery Codes").first).to_be_visible()

    sign_out(page, site)
    enter_password(page, site)
    expect(page.get_by_role("heading", name="Two-Factor Authentication")).to_be_visible()
    page.goto(f"{site}/o/{rows['new_slug']}/")
    assert page.url == f"{site}/accounts/2fa/authenticate/"
    page.get_by_role("button", name="Use a security key").click()
    page.wait_for_url(lambda address: "/o/" in address)

    page.goto(f"{site}/accounts/2fa/webauthn/")
    expect(page.get_by_text("Blue key")).to_be_visible()
    page.get_by_role("link", name="Remove").click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.get_by_role("button", name="Remove").click()
    page.wait_for_url(lambda address: "/remove/" not in address)
    expect(page.get_by_text("Blue key")).to_have_count(0)
    sign_out(page, site)
    enter_password(page, site)
    page.wait_for_url(lambda address: "/o/" in address)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_code_for_an_app_is_dark_on_light(open_window: OpenWindow, product: Stack, rows: Any, scheme: str) -> None:
    """Cameras read no other, whatever colours the page has."""
    page = open_window(color_scheme=scheme)
    enter_password(page, product.portal_url)
    page.wait_for_url(lambda address: "/o/" in address)
    page.goto("/accounts/2fa/totp/activate/")
    page.get_by_label("Password").fill(PASSWORD)
    submit(page.get_by_role("button", name="Confirm"))
    code = page.locator("img.qr")
    code.evaluate("image => image.decode()")
    grey = Image.open(io.BytesIO(code.screenshot())).convert("L")
    width, height = grey.size
    border = [grey.getpixel((x, y)) for x in range(8, width - 8) for y in (8, height - 9)]
    assert min(border) > 200
    share_of_dark = sum(grey.histogram()[:64]) / (width * height)
    assert 0.15 < share_of_dark < 0.6
