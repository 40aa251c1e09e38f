"""Every page, wide in the light and narrow in the dark: it answers, fits, keeps its content policy and passes axe."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from playwright.sync_api import Page, Response

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.pages import PAGES, PortalPage
from tests.browser.window import overflow

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

AXE = (Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js").read_text()
VIOLATIONS = """
async () => {
  const rules = { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] };
  const found = await axe.run(document, { resultTypes: ["violations"], runOnly: rules, preload: false });
  return found.violations
    .filter((violation) => ["serious", "critical"].includes(violation.impact))
    .flatMap(({ id, nodes }) =>
      nodes.slice(0, 3).map(({ target, failureSummary }) => `${id}: ${target}: ${failureSummary.slice(0, 250)}`));
}
"""
# The promise for a browser that has nothing yet.
LIGHT_BYTES = 100_000
# (width, colour scheme): each page is seen in both, from one request.
SIGHTS = ((WIDE, "light"), (NARROW, "dark"))


def faults(page: Page, what: PortalPage, response: Response | None) -> list[str]:
    found = [] if response and response.status == what.status else [f"status {response and response.status}"]
    for width, scheme in SIGHTS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        if (pixels := overflow(page)) > 0:
            found.append(f"{pixels} px wider than {width}")
        page.evaluate(AXE)
        found += [f"{width} {scheme}: {text}" for text in page.evaluate(VIOLATIONS)]
    return [f"{what.name}: {text}" for text in found]


@pytest.mark.parametrize("who", ["", "cyd", "ada", "oda"])
def test_every_page_is_sound(who: str, open_window: OpenWindow, rows: dict[str, object]) -> None:
    window = open_window(who, refusals=tuple({what.status for what in PAGES if what.who == who} - {200}))
    found = []
    for what in PAGES:
        if what.who == who:
            response = window.goto(what.path.format(**rows))
            found += faults(window, what, response)
    assert not found, "\n".join(found)


def test_names_are_unique() -> None:
    names = sorted(page.name for page in PAGES)
    assert [name for name, same in groupby(names) if len(list(same)) > 1] == []


@pytest.mark.parametrize(("who", "path"), [("", "/"), ("ada", "/o/{slug}/")])
def test_a_first_page_is_light(who: str, path: str, open_window: OpenWindow, rows: dict[str, object]) -> None:
    """What it takes over the network; a signed-in browser has seen the sign-in page. Static files are kept for ever."""
    page = open_window(who)
    fetched: list[Response] = []
    page.on("response", lambda response: fetched.append(response))
    page.goto(path.format(**rows))
    page.wait_for_load_state("networkidle")
    weights = page.evaluate(
        "performance.getEntries().filter((it) => it.transferSize).map((it) => [it.name, it.transferSize])"
    )
    assert 5_000 < sum(weight for _, weight in weights) <= LIGHT_BYTES, weights
    kept = {each.url: each.headers.get("cache-control", "") for each in fetched if "/static/" in each.url}
    assert len(kept) > 5
    assert all("immutable" in rule for rule in kept.values()), kept
