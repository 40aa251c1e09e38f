"""Every page as a German browser gets it: no text of the catalogue is left in English, and nothing is outside of it."""

from __future__ import annotations

import gettext
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import NARROW, OpenWindow
from tests.browser.pages import PAGES
from tests.browser.window import overflow, wait_until_still
from tests.end_to_end.stack import ROOT

pytestmark = pytest.mark.browser

CATALOGUE = ROOT / "portal" / "locale" / "de" / "LC_MESSAGES" / "django.mo"
# In English: the API, the parts of the design, mails as they were sent; and what an engine says of itself.
IN_ENGLISH = {"api-docs", "api-docs-inference", "design", "mailbox", "operator-engines"}
# What people call their own things, and names of the product's.
NAMES = {"Search", "Default", "Trial", "Playground", "Responses", "Completions", "Messages", "production", "Continue"}
# What was written when something happened, or by whoever published a model, in the language of then.
WRITTEN = re.compile(r"^(The usage of this period was covered|A small instruction-tuned model)")
# What people read, and what is read to them.
TEXTS = """
() => {
  const skipped = "script, style, code, pre, svg, time, [lang=en]";
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(skipped)) found.push(walker.currentNode.data);
  for (const name of ["placeholder", "aria-label", "title", "alt"])
    for (const element of document.querySelectorAll(`[${name}]`))
      if (!element.closest(skipped)) found.push(element.getAttribute(name));
  return [...new Set(found.map((text) => text.replace(/\\s+/g, " ").trim()).filter(Boolean))];
}
"""
ENGLISH = re.compile(r"\b(the|and|of|is|are|with|your|this|that|from|which|not|one|every|its)\b")


def english_texts(path: Path) -> set[str]:
    """Those that have a translation of another wording."""
    with path.open("rb") as stream:
        catalogue = gettext.GNUTranslations(stream)
    entries: dict[str | tuple[str, int], str] = catalogue._catalog  # type: ignore[attr-defined]  # there is no public way
    texts = {key: text for key, text in entries.items() if isinstance(key, str) and key}
    # A German text may be spelled as another one is in English, such as Name.
    return {key for key, text in texts.items() if key != text} - set(texts.values())


def left_in_english(page: Page, known: set[str]) -> list[str]:
    texts = [text for text in page.evaluate(TEXTS) if text not in NAMES and not WRITTEN.match(text)]
    return [text for text in texts if text in known or ENGLISH.search(text)]


@pytest.mark.parametrize("who", ["", "cyd", "ada", "oda"])
def test_every_page_is_german(who: str, open_window: OpenWindow, rows: dict[str, object]) -> None:
    known = english_texts(CATALOGUE)
    assert len(known) > 900
    refusals = tuple({what.status for what in PAGES if what.who == who} - {200})
    window = open_window(who, width=NARROW, refusals=refusals, locale="de-DE")
    found = []
    for what in PAGES:
        if what.who == who and what.name not in IN_ENGLISH:
            window.goto(what.path.format(**rows))
            wait_until_still(window)
            assert window.locator("html").get_attribute("lang") == "de"
            found += [f"{what.name}: {text}" for text in left_in_english(window, known)]
            if (pixels := overflow(window)) > 0:
                found.append(f"{what.name}: {pixels} px wider than the window")
    assert not found, "\n".join(found)
