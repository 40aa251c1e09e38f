"""How soon the portal answers a person, in Chromium on this machine: from the event to the paint that shows its effect.

    python -m benchmarks.interactions             # starts a product of its own, fills it, prints the table
    python -m benchmarks.interactions --write     # and writes docs/benchmarks/interactions.md

What the browser itself says of events (Event Timing, in steps of 8 ms); of charts, until the new one stands there; of
links, from the click to the first paint of the next page.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

from tests.browser.chromium import launch_options
from tests.browser.seed import seeded_by
from tests.browser.window import sign_in
from tests.end_to_end.stack import Stack

REPORT = Path("docs/benchmarks/interactions.md")
GOAL_MS = 100
REPEATS = 7
# Events that are painted sooner are not told of.
LEAST_MS = 16
SETTLE_MS = 250
WATCH = f"""
window.answered = [];
new PerformanceObserver((list) => window.answered.push(...list.getEntries().map((it) => it.duration)))
  .observe({{ type: "event", durationThreshold: {LEAST_MS}, buffered: true }});
"""
# From the click to the chart that it asked for.
WATCH_CHART = """
() => {
  const box = document.querySelector("[data-plot]");
  window.drawn = null;
  document.addEventListener("click", () => {
    const began = performance.now();
    new MutationObserver((_, observer) => {
      if (box.hasAttribute("aria-busy")) return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => (window.drawn = performance.now() - began)));
    }).observe(box, { attributes: true });
  }, { once: true, capture: true });
}
"""


@dataclass(frozen=True)
class Interaction:
    """`act` is repeated; `undo` brings the page back, unmeasured."""

    name: str
    path: str
    act: Callable[[Page], object]
    undo: Callable[[Page], object] = lambda page: None
    who: str = "ada"
    what: str = "event"


def click(selector: str) -> Callable[[Page], object]:
    return lambda page: page.locator(selector).first.click()


def press(key: str) -> Callable[[Page], object]:
    return lambda page: page.keyboard.press(key)


INTERACTIONS = [
    Interaction("open a dialog", "/o/{slug}/keys", click("[data-dialog=new-key]"), press("Escape")),
    Interaction("close a dialog", "/o/{slug}/keys", press("Escape"), click("[data-dialog=new-key]")),
    Interaction("write in a field", "/o/{slug}/keys?new=1", press("a")),
    Interaction("open a menu", "/o/{slug}/", click(".sidebar-foot summary"), press("Escape")),
    Interaction(
        "switch the theme",
        "/o/{slug}/usage",
        lambda page: (
            page.evaluate("document.querySelector('.sidebar-foot details').open = true")
            or page.locator("[data-theme-next]").click()
        ),
    ),
    Interaction("choose a tab", "/o/{slug}/quickstart", click("[role=tab][aria-selected=false]")),
    Interaction("choose a measure", "/o/{slug}/usage?days=30", click("[data-metric][aria-pressed=false]")),
    Interaction("choose a step", "/o/{slug}/usage?days=30", click("button[data-step][aria-pressed=false]")),
    Interaction("show code", "/o/{slug}/playground", click("#show-code"), press("Escape")),
    Interaction(
        "a new measure is drawn", "/o/{slug}/usage?days=30", click("[data-metric][aria-pressed=false]"), what="chart"
    ),
    Interaction(
        "a new step is drawn", "/o/{slug}/usage?days=30", click("button[data-step][aria-pressed=false]"), what="chart"
    ),
    Interaction(
        "set a filter",
        "/o/{slug}/usage/requests",
        lambda page: page.locator("#id_status").select_option("failed"),
        lambda page: page.go_back(),
        what="page",
    ),
    Interaction(
        "open a page",
        "/o/{slug}/",
        lambda page: page.locator(".nav-link", has_text="Limits").click(),
        lambda page: page.go_back(),
        what="page",
    ),
    Interaction(
        "an older page of requests",
        "/o/{slug}/usage/requests",
        lambda page: page.locator(".pager a").last.click(),
        lambda page: page.go_back(),
        what="page",
    ),
    Interaction(
        "open an operator's page",
        "/operator/",
        lambda page: page.locator(".nav-link", has_text="Invoice run").click(),
        lambda page: page.go_back(),
        who="oda",
        what="page",
    ),
]


def once(page: Page, interaction: Interaction) -> float:
    page.evaluate("window.answered.length = 0")
    if interaction.what == "chart":
        page.evaluate(WATCH_CHART)
    before = page.url
    interaction.act(page)
    if interaction.what == "page":
        page.wait_for_url(lambda address: address != before)
        return _when_known(page, "performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    if interaction.what == "chart":
        return _when_known(page, "window.drawn")
    page.wait_for_timeout(SETTLE_MS)
    return float(page.evaluate(f"Math.max({LEAST_MS}, ...window.answered)"))


def _when_known(page: Page, expression: str) -> float:
    """The pages' content policy forbids Playwright's own way of waiting for a value."""
    deadline = time.monotonic() + 30
    while (value := page.evaluate(expression)) is None:
        assert time.monotonic() < deadline, f"{expression} on {page.url} is not known within 30 s"
        page.wait_for_timeout(20)
    return float(value)


def measure(page: Page, interaction: Interaction, rows: dict[str, object]) -> list[float]:
    """After one that warms up."""
    page.goto(interaction.path.format(**rows))
    page.wait_for_load_state("networkidle")
    taken = []
    for number in range(REPEATS + 1):
        value = once(page, interaction)
        if number:
            taken.append(value)
        interaction.undo(page)
        page.wait_for_timeout(SETTLE_MS)
    return taken


KINDS = {"event": "event to paint", "chart": "click to the new chart", "page": "click to the next page's first paint"}


def report(results: list[tuple[Interaction, list[float]]], browser: str) -> str:
    events = [(interaction, taken) for interaction, taken in results if interaction.what == "event"]
    slow = [interaction.name for interaction, taken in events if median(taken) > GOAL_MS]
    lines = [
        "# Interactions",
        "",
        "How soon the portal answers a person, made by `python -m benchmarks.interactions --write`: the product as"
        " `make up` starts it and",
        f"Chromium {browser} on one machine with {os.cpu_count()} cores, load average {os.getloadavg()[0]:.0f}."
        f" {REPEATS} times each after a first one. Event Timing",
        f"counts in steps of 8 ms and from {LEAST_MS} ms on. The goal is {GOAL_MS} ms from an event to the paint that"
        " shows it; what a chart or a page",
        "takes to come from the server is shown below it, and blocks nothing.",
        "",
        f"**{len(events) - len(slow)} of {len(events)} are within the goal.**"
        + (f" Above it: {', '.join(slow)}." if slow else ""),
        "",
        "| interaction | measured | median ms | slowest ms |",
        "| --- | --- | --- | --- |",
        *(
            f"| {interaction.name} | {KINDS[interaction.what]} | {median(taken):.0f} | {max(taken):.0f} |"
            for interaction, taken in results
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"Write {REPORT}.")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        # PostgreSQL runs as another user when we are root.
        os.chmod(folder, 0o755)
        stack = Stack(Path(folder) / "state")
        stack.start()
        try:
            rows = seeded_by(stack)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(**launch_options())
                pages = {}
                for interaction in INTERACTIONS:
                    if interaction.who not in pages:
                        page = browser.new_context(
                            base_url=stack.portal_url, viewport={"width": 1280, "height": 860}, locale="en-GB"
                        ).new_page()
                        page.add_init_script(WATCH)
                        sign_in(page, f"{interaction.who}@example.com")
                        pages[interaction.who] = page
                    taken = measure(pages[interaction.who], interaction, rows)
                    results.append((interaction, taken))
                    print(f"{interaction.name}: {median(taken):.0f} ms, at most {max(taken):.0f}", flush=True)
                text = report(results, browser.version)
        finally:
            stack.stop()
    if arguments.write:
        REPORT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
