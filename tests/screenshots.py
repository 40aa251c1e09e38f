"""Takes the screenshots of docs/screenshots, each page wide and narrow, light and dark.

`python -m tests.screenshots` starts a product of its own and fills it. A page that answers with an error, overflows its
width or complains on the console is named, and the command fails.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.chromium import launch_options
from tests.browser.pages import PAGES, PortalPage
from tests.browser.seed import ENVIRONMENT, seeded_by
from tests.browser.window import overflow, sign_in
from tests.end_to_end.stack import ROOT, Stack

FOLDER = ROOT / "docs" / "screenshots"
SCHEMES = ("light", "dark")
SETTLE_MS = 400
WIDTHS = {"wide": (1280, 860), "narrow": (390, 844)}
# A narrow page is shown in full up to here.
LONGEST_PX = 1700
COLOURS = 96


class Photographer:
    """Signs in once for each person and width; pictures are made smaller while the next page loads."""

    def __init__(self, browser: Browser, url: str, rows: dict[str, object], language: str) -> None:
        self.browser, self.url, self.rows, self.language = browser, url, rows, language
        self.contexts: dict[tuple[str, str], BrowserContext] = {}
        self.cookies: dict[str, list[object]] = {}
        self.complaints: list[str] = []
        self.saving = ThreadPoolExecutor(max_workers=2)

    def take(self, what: PortalPage, width_name: str, folder: Path) -> None:
        """The page in the light and in the dark, from one visit."""
        width, _height = WIDTHS[width_name]
        page = self._context(what.who, width_name).new_page()
        where = f"{what.name} at {width}"
        page.on("pageerror", lambda error: self.complaints.append(f"{where}: {error}"))
        page.on("console", lambda message: self._hear(where, message.type, message.text))
        response = page.goto(what.path.format(**self.rows))
        assert response is not None
        if response.status != what.status:
            self.complaints.append(f"{where}: status {response.status}")
        if what.name == "playground":
            self._ask(page)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.wait_for_timeout(SETTLE_MS)
            png = page.screenshot(full_page=width_name == "narrow")
            name = f"{what.name}{'-dark' if scheme == 'dark' else ''}-{width}.png"
            self.saving.submit(save, png, folder / name).add_done_callback(self._saved)
        if (pixels := overflow(page)) > 0:
            self.complaints.append(f"{where}: {pixels} px wider than the window")
        page.close()

    def finish(self) -> None:
        """Returns when the last picture is on the disk."""
        self.saving.shutdown()

    def _saved(self, done: Future[None]) -> None:
        if error := done.exception():
            self.complaints.append(f"not saved: {error}")

    def _context(self, who: str, width_name: str) -> BrowserContext:
        if (who, width_name) not in self.contexts:
            width, height = WIDTHS[width_name]
            context = self.browser.new_context(
                base_url=self.url,
                viewport={"width": width, "height": height},
                locale=self.language,
                reduced_motion="reduce",
            )
            if who:
                self._sign_in(context, who)
            self.contexts[who, width_name] = context
        return self.contexts[who, width_name]

    def _hear(self, where: str, kind: str, text: str) -> None:
        # The browser reports the status of the page that is meant to be missing.
        if kind == "error" and not (where.startswith("not-found") and "404" in text):
            self.complaints.append(f"{where}: {text}")

    def _sign_in(self, context: BrowserContext, who: str) -> None:
        if who not in self.cookies:
            visitor = self.browser.new_context(base_url=self.url, locale="en-GB")
            sign_in(visitor.new_page(), f"{who}@example.com")
            self.cookies[who] = list(visitor.cookies())
            visitor.close()
        context.add_cookies(self.cookies[who])  # type: ignore[arg-type]

    def _ask(self, page: Page) -> None:
        page.locator("#temperature").fill("0")
        page.locator("#max_tokens").fill("24")
        page.locator("[data-example]").first.click()
        page.locator(".turn-facts").wait_for(timeout=60_000)


def save(png: bytes, path: Path) -> None:
    """Fewer colours are enough for flat pages, and a third of the size."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, LONGEST_PX)))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="A regular expression of names.")
    parser.add_argument("--language", default="en-GB", help="What the browser asks for.")
    parser.add_argument("--into", type=Path, default=FOLDER, help="The folder; its own is docs/screenshots.")
    arguments = parser.parse_args()
    wanted = re.compile(arguments.only)
    arguments.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # PostgreSQL runs as another user when we are root.
        os.chmod(folder, 0o755)
        stack = Stack(Path(folder) / "state", extra_environment=ENVIRONMENT)
        stack.start()
        try:
            rows = seeded_by(stack)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(**launch_options())
                photographer = Photographer(browser, stack.portal_url, rows, arguments.language)
                for what in filter(lambda page: wanted.search(page.name), PAGES):
                    for width_name in WIDTHS:
                        photographer.take(what, width_name, arguments.into)
                    print(what.name, flush=True)
                photographer.finish()
        finally:
            stack.stop()
    shots = list(arguments.into.glob("*.png"))
    print(f"{len(shots)} files, {sum(path.stat().st_size for path in shots) / 1e6:.1f} MB in {arguments.into}")
    for complaint in photographer.complaints:
        print(complaint, file=sys.stderr)
    return 1 if photographer.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
