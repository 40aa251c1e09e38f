"""Every page, wide in the light and narrow in the dark: it answers, fits, stays still, is light, and passes axe."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from playwright.sync_api import CDPSession, Page, Response

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.pages import PAGES, PortalPage
from tests.browser.window import overflow, wait_until_still

pytestmark = pytest.mark.browser

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
# What moved by itself, with the elements that did; read by `shifts()`.
WATCH_SHIFTS = """
(() => {
  const seen = [];
  new PerformanceObserver((list) => seen.push(...list.getEntries())).observe({ type: "layout-shift", buffered: true });
  const name = ({ node }) => (node?.outerHTML ?? node?.parentElement?.outerHTML ?? "").slice(0, 90);
  window.shifts = () => seen.filter((it) => !it.hadRecentInput).map((it) => [it.value, it.sources.map(name).join()]);
})();
"""
# Parts that ask again by themselves do so until the page is judged: not while one looks at it.
HOLD = """
(() => {
  window.isHeld = false;
  addEventListener("htmx:beforeRequest", (event) => window.isHeld && event.preventDefault());
})();
"""
# Whatever takes the focus and does not look otherwise then.
UNSEEN_FOCUS = """
() => {
  const selector = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  const looks = ({ outlineStyle, outlineWidth, boxShadow }) =>
    outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 ? "outlined" : boxShadow;
  document.activeElement.blur();
  // An open dialog is all that there is.
  const scope = document.querySelector("dialog:modal") ?? document;
  const reachable = [...scope.querySelectorAll(selector)].filter(
    (it) => !it.disabled && it.tabIndex >= 0 && it.checkVisibility({ visibilityProperty: true }));
  const unseen = reachable.filter((it) => {
    const before = looks(getComputedStyle(it));
    it.focus({ focusVisible: true, preventScroll: true });
    return document.activeElement !== it || looks(getComputedStyle(it)) === before;
  });
  document.activeElement.blur();
  return unseen.map((it) => it.outerHTML.slice(0, 100));
}
"""
WEIGHTS = """
() => Object.fromEntries(
  performance.getEntries().filter((it) => it.transferSize).reverse().map((it) => [it.name, it.transferSize]))
"""
# The promises: of moving, as browsers measure it; of bytes over the network, for a browser that has nothing yet.
MOST_SHIFT = 0.05
LIGHT_BYTES = 100_000
# (width, colour scheme)
SIGHTS = ((WIDE, "light"), (NARROW, "dark"))


def shifts_of(page: Page) -> list[tuple[float, str]]:
    """What moved by itself: each time it is opened, for a page that a busy machine gets in parts may move once."""
    for _ in range(3):
        shifts: list[tuple[float, str]] = page.evaluate("shifts()")
        if sum(value for value, _ in shifts) < MOST_SHIFT:
            return []
        page.reload()
        wait_until_still(page)
    return shifts


def look(page: Page, network: CDPSession, what: PortalPage, path: str, width: int, scheme: str) -> list[str]:
    """Open it, wide as a browser that was never there, and say what is wrong."""
    page.set_viewport_size({"width": width, "height": 860})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    is_new = width == WIDE
    if is_new:
        network.send("Network.clearBrowserCache")
    response = page.goto(path)
    found = [] if response and response.status == what.status else [f"status {response and response.status}"]
    wait_until_still(page)
    page.evaluate("isHeld = true")
    wait_until_still(page)
    found += page.evaluate(VIOLATIONS)
    if (pixels := overflow(page)) > 0:
        found.append(f"{pixels} px wider than the window")
    found += [f"no visible focus: {element}" for element in page.evaluate(UNSEEN_FOCUS)]
    # Once each: how often a part asked again before it was held is the machine's pace.
    weights = page.evaluate(WEIGHTS)
    if is_new and not 5_000 < sum(weights.values()) <= LIGHT_BYTES:
        found.append(f"weighs {sum(weights.values())} bytes: {weights}")
    if shifts := shifts_of(page):
        found.append(f"moves: {shifts}")
    return [f"{what.name}, {width} px, {scheme}: {text}" for text in found]


@pytest.mark.parametrize("who", ["", "cyd", "ada", "oda"])
def test_every_page_is_sound(who: str, open_window: OpenWindow, rows: dict[str, object]) -> None:
    window = open_window(who, refusals=tuple({what.status for what in PAGES if what.who == who} - {200}))
    window.add_init_script(WATCH_SHIFTS)
    window.add_init_script(HOLD)
    window.add_init_script(AXE)
    network = window.context.new_cdp_session(window)
    network.send("Network.enable")
    found = []
    for what in PAGES:
        if what.who == who:
            for width, scheme in SIGHTS:
                found += look(window, network, what, what.path.format(**rows), width, scheme)
    assert not found, "\n".join(found)


def test_names_are_unique() -> None:
    names = sorted(page.name for page in PAGES)
    assert [name for name, same in groupby(names) if len(list(same)) > 1] == []


def test_static_files_are_kept_for_ever(open_window: OpenWindow, rows: dict[str, object]) -> None:
    page = open_window("ada")
    fetched: list[Response] = []
    page.on("response", lambda response: fetched.append(response))
    page.goto(f"/o/{rows['slug']}/")
    page.wait_for_load_state("networkidle")
    kept = {each.url: each.headers.get("cache-control", "") for each in fetched if "/static/" in each.url}
    assert len(kept) > 5
    assert all("immutable" in rule for rule in kept.values()), kept
