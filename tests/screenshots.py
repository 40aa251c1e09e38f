"""Takes the screenshots of docs/screenshots: `python -m tests.screenshots` starts a product of its own and fills it.

A page that answers with an error, overflows its width or complains on the console is named, and the command fails.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from config.local.state import RunFolder
from tests.end_to_end.browser import launch_options
from tests.end_to_end.stack import ROOT, Stack

FOLDER = ROOT / "docs" / "screenshots"
WIDTHS = {"wide": (1280, 860), "narrow": (390, 844)}
# A narrow page is shown in full up to here.
LONGEST_PX = 1700
COLOURS = 96


@dataclass(frozen=True)
class Shot:
    """`who` is signed in; `{slug}` and the like are filled in from the seeded rows."""

    name: str
    path: str
    who: str = ""
    is_dark: bool = False


SHOTS = [
    Shot("front", "/"),
    Shot("sign-up", "/accounts/signup/"),
    Shot("check-your-mail", "/accounts/confirm-email/"),
    Shot("sign-in", "/accounts/login/"),
    Shot("password-reset", "/accounts/password/reset/"),
    Shot("mailbox", "/dev/mailbox"),
    Shot("public-models", "/models"),
    Shot("not-found", "/nowhere"),
    Shot("onboarding", "/o/{new_slug}/", "cyd"),
    Shot("home", "/o/{slug}/", "ada"),
    Shot("home-dark", "/o/{slug}/", "ada", is_dark=True),
    Shot("api-keys", "/o/{slug}/keys", "ada"),
    Shot("api-key-new", "/o/{slug}/keys?new=1", "ada"),
    Shot("quick-start", "/o/{slug}/quickstart", "ada"),
    Shot("playground", "/o/{slug}/playground", "ada"),
    Shot("playground-dark", "/o/{slug}/playground", "ada", is_dark=True),
    Shot("models", "/o/{slug}/models", "ada"),
    Shot("usage", "/o/{slug}/usage?days=30", "ada"),
    Shot("usage-dark", "/o/{slug}/usage?days=30", "ada", is_dark=True),
    Shot("requests", "/o/{slug}/usage/requests", "ada"),
    Shot("request", "/o/{slug}/usage/requests/{request_id}", "ada"),
    Shot("billing", "/o/{slug}/billing", "ada"),
    Shot("ledger", "/o/{slug}/billing/ledger", "ada"),
    Shot("invoice", "/o/{slug}/billing/invoices/{invoice_id}", "ada"),
    Shot("billing-details", "/o/{slug}/billing/details", "ada"),
    Shot("credit", "/o/{slug}/billing/credit", "ada"),
    Shot("exports", "/o/{slug}/exports", "ada"),
    Shot("limits", "/o/{slug}/limits", "ada"),
    Shot("management-keys", "/o/{slug}/management-keys", "ada"),
    Shot("alerts", "/o/{slug}/alerts", "ada"),
    Shot("webhooks", "/o/{slug}/alerts/webhooks", "ada"),
    Shot("sessions", "/account/sessions", "ada"),
    Shot("api-docs", "/api/docs"),
    Shot("members", "/o/{slug}/members", "ada"),
    Shot("audit", "/o/{slug}/audit", "ada"),
    Shot("settings", "/o/{slug}/settings", "ada"),
    Shot("account", "/account", "ada"),
    Shot("two-factor", "/accounts/2fa/", "ada"),
    Shot("operator", "/operator/", "oda"),
    Shot("operator-operations", "/operator/operations?range=24h", "oda"),
    Shot("operator-operations-dark", "/operator/operations?range=24h", "oda", is_dark=True),
    Shot("operator-capacity", "/operator/capacity?tokens_per_s=387.6&compare_with=253.9", "oda"),
    Shot("operator-organizations", "/operator/organizations", "oda"),
    Shot("operator-organization", "/operator/organizations/{slug}", "oda"),
    Shot("operator-models", "/operator/models", "oda"),
    Shot("operator-model", "/operator/models/{model_id}", "oda"),
    Shot("operator-engines", "/operator/engines", "oda"),
    Shot("operator-invoices", "/operator/invoices?period={period}", "oda"),
    Shot("operator-invoices-dark", "/operator/invoices?period={period}", "oda", is_dark=True),
    Shot("operator-reconciliation", "/operator/reconciliation", "oda"),
    Shot("operator-money", "/operator/organizations/{slug}/money", "oda"),
    Shot("operator-invoice", "/operator/invoices/{invoice_id}", "oda"),
    Shot("operator-promo-codes", "/operator/promo-codes", "oda"),
    Shot("operator-tax-rates", "/operator/tax-rates", "oda"),
    Shot("operator-payment-events", "/operator/payment-events", "oda"),
]


def seed(stack: Stack) -> dict[str, object]:
    """Fills the running product through the services; returns what the paths need."""
    environment = RunFolder(stack.var_dir).read_environment()
    assert environment is not None
    os.environ.update(environment)
    import django

    django.setup()
    from datetime import timedelta

    from django.utils import timezone

    from billing.invoices.models import Invoice
    from portal.api_keys.services import issue
    from portal.catalog.models import Model
    from portal.operator.services import start_run
    from portal.organizations.invitations import invite
    from portal.organizations.roles import Role
    from portal.organizations.services import create_project
    from portal.quotas.models import QuotaKind, Window
    from portal.quotas.services import change_quota
    from tests.factories.portal import MODEL, make_cast
    from tests.factories.usage import use, use_for_days

    now = timezone.now()
    cast = make_cast()
    search = create_project(organization=cast.organization, name="Search", actor=cast.ada)
    production = issue(project=cast.project, name="production", actor=cast.ada)
    keys = [
        production.api_key,
        issue(project=search, name="evaluation", actor=cast.ben).api_key,
        issue(project=cast.project, name="laptop", actor=cast.ben, expires_at=now + timedelta(days=30)).api_key,
    ]
    use_for_days(keys, MODEL, now=now - timedelta(minutes=3), days=40, calls_per_day=18, price_at=now)
    request_id = use(keys[0], MODEL, started_at=now, prompt_tokens=2412, cached_tokens=1900, completion_tokens=312)
    for kind, window, limit, scope in (
        (QuotaKind.SPEND, Window.MONTH, 2_000_000_000, {}),
        (QuotaKind.TOKENS, Window.DAY, 60_000, {"project": search}),
        (QuotaKind.REQUESTS, Window.MINUTE, 60, {"api_key": keys[2]}),
    ):
        change_quota(
            organization=cast.organization,
            kind=kind,
            window=window,
            limit=limit,
            actor=cast.dee,
            reason="Trial",
            **scope,
        )
    invite(organization=cast.organization, email="eve@example.com", role=Role.DEVELOPER, actor=cast.ada)
    last_month = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"
    run = start_run(period=last_month, is_preview=False, actor=cast.oda)
    stack.await_rows("SELECT 1 FROM portal_invoicerun WHERE id = %s AND state = 'finished'", run.id)
    # Real calls, so that records and receipts meet.
    client = stack.client(api_key=production.secret)
    for question in ("What is the capital of France?", "Name three colours."):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=24, temperature=0
        )
    return {
        "slug": cast.organization.slug,
        "new_slug": "cyds-organization",
        "request_id": request_id,
        "invoice_id": Invoice.objects.get(organization=cast.organization).id,
        "model_id": Model.objects.get(name=MODEL).id,
        "period": last_month,
    }


class Photographer:
    def __init__(self, browser: Browser, url: str, rows: dict[str, object]) -> None:
        self.browser, self.url, self.rows = browser, url, rows
        self.cookies: dict[str, list[object]] = {}
        self.complaints: list[str] = []

    def take(self, shot: Shot, width_name: str) -> None:
        width, height = WIDTHS[width_name]
        context = self.browser.new_context(
            base_url=self.url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if shot.is_dark else "light",
            locale="en-GB",
        )
        page = context.new_page()
        where = f"{shot.name} at {width}"
        page.on("pageerror", lambda error: self.complaints.append(f"{where}: {error}"))
        page.on("console", lambda message: self._hear(where, message.type, message.text))
        if shot.who:
            self._sign_in(context, page, shot.who)
        response = page.goto(shot.path.format(**self.rows))
        assert response is not None
        if response.status != (404 if shot.name == "not-found" else 200):
            self.complaints.append(f"{where}: status {response.status}")
        if shot.name.startswith("playground"):
            self._ask(page)
        page.wait_for_timeout(500)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if overflow > 0:
            self.complaints.append(f"{where}: {overflow} px wider than the window")
        png = page.screenshot(full_page=width_name == "narrow")
        context.close()
        save(png, FOLDER / f"{shot.name}-{width}.png")

    def _hear(self, where: str, kind: str, text: str) -> None:
        # The browser reports the status of the page that is meant to be missing.
        if kind == "error" and not (where.startswith("not-found") and "404" in text):
            self.complaints.append(f"{where}: {text}")

    def _sign_in(self, context: BrowserContext, page: Page, who: str) -> None:
        from tests.factories.portal import PASSWORD

        if who in self.cookies:
            context.add_cookies(self.cookies[who])  # type: ignore[arg-type]
            return
        page.goto("/accounts/login/")
        page.get_by_label("E-mail").fill(f"{who}@example.com")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(lambda address: "/accounts/login" not in address)
        self.cookies[who] = list(context.cookies())

    def _ask(self, page: Page) -> None:
        page.get_by_label("Temperature").fill("0")
        page.get_by_label("Most output, tokens").fill("24")
        page.get_by_role("button", name="What is the capital of France?").click()
        page.locator(".turn-facts").wait_for(timeout=60_000)


def save(png: bytes, path: Path) -> None:
    """Fewer colours are enough for flat pages, and a third of the size."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, LONGEST_PX)))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="A regular expression of names.")
    wanted = re.compile(parser.parse_args().only)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # PostgreSQL runs as another user when we are root.
        os.chmod(folder, 0o755)
        stack = Stack(Path(folder) / "state")
        stack.start()
        try:
            rows = seed(stack)
            with sync_playwright() as playwright:
                photographer = Photographer(playwright.chromium.launch(**launch_options()), stack.portal_url, rows)
                for shot in SHOTS:
                    for width_name in WIDTHS:
                        if wanted.search(shot.name):
                            photographer.take(shot, width_name)
                            print(shot.name, width_name, flush=True)
        finally:
            stack.stop()
    size = sum(path.stat().st_size for path in FOLDER.glob("*.png"))
    print(f"{len(list(FOLDER.glob('*.png')))} files, {size / 1e6:.1f} MB in {FOLDER.relative_to(ROOT)}")
    for complaint in photographer.complaints:
        print(complaint, file=sys.stderr)
    return 1 if photographer.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
