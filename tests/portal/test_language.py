"""The German catalogue is complete and compiled, and pages come in the language that the reader chose or asks for."""

from __future__ import annotations

import ast
import gettext
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import dates, translation
from django.utils.translation.template import templatize

from portal.templatetags.portal import count, duration, money
from tests.factories.portal import Cast

ROOT = Path(settings.BASE_DIR)
FOLDER = ROOT / "portal" / "locale" / "de" / "LC_MESSAGES"
# Letters about invoices are in the payer's language, from billing's own catalogue; /design and the mailbox are not for
# customers.
ELSEWHERE = ("emails/dunning", "emails/invoice", "portal/mailbox", "home/design", "templates/api/")
QUOTED = r"\"\"\".*?\"\"\"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%[sd]|<[^>]+>")


def compiled(name: str) -> gettext.GNUTranslations:
    with (FOLDER / f"{name}.mo").open("rb") as stream:
        return gettext.GNUTranslations(stream)


@cache
def written(name: str) -> dict[str, list[str]]:
    """msgid -> its translations, as the .po file has them."""
    entries: dict[str, list[str]] = {}
    for block in (FOLDER / f"{name}.po").read_text().split("\n\n"):
        assert "#, fuzzy" not in block, block
        fields = re.findall(r'^(msgid|msgstr(?:\[\d\])?) ((?:".*"\n?)+)', block, re.MULTILINE)
        texts = [(kind, "".join(ast.literal_eval(line) for line in text.splitlines())) for kind, text in fields]
        if texts and texts[0][1]:
            entries[texts[0][1]] = [text for kind, text in texts if kind != "msgid"]
    return entries


@pytest.mark.parametrize("name", ["django", "djangojs"])
def test_everything_is_translated_and_compiled(name: str) -> None:
    entries, catalogue = written(name), compiled(name)
    assert len(entries) > 30
    assert [text for text, translations in entries.items() if not all(translations)] == []
    stale = [
        text for text, (first, *more) in entries.items() if not more and catalogue.gettext(text) not in (first, text)
    ]
    assert stale == [], "compile it: make messages"
    assert all(catalogue.gettext(text) == first for text, (first, *more) in entries.items() if not more)


@pytest.mark.parametrize("name", ["django", "djangojs"])
def test_what_is_filled_in_and_marked_up_is_in_the_translation_too(name: str) -> None:
    for text, translations in written(name).items():
        for translated in translations:
            assert sorted(PLACEHOLDER.findall(translated)) == sorted(PLACEHOLDER.findall(text)), translated


@cache
def messages_of_templates() -> set[str]:
    found = set()
    for path in (ROOT / "templates").rglob("*.*"):
        if any(part in str(path) for part in ELSEWHERE):
            continue
        code = templatize(path.read_text())
        for quoted in re.findall(rf"(?:\bgettext|\b_)\((u?(?:{QUOTED}))\)", code, re.DOTALL):
            found.add(ast.literal_eval(quoted))
    return found


def messages_of_code() -> set[str]:
    """Of pages; the letters of billing/invoices/mail.py have billing's own catalogue."""
    found = set()
    for path in [*(ROOT / "portal").rglob("*.py"), *(ROOT / "billing").rglob("*.py")]:
        if path.name == "mail.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("_", "gettext", "gettext_lazy", "gettext_noop")
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(node.args[0].value)
    return found


@cache
def messages_of_scripts() -> set[str]:
    scripts = (path.read_text() for path in (ROOT / "static" / "js").glob("*.js"))
    return {ast.literal_eval(text) for script in scripts for text in re.findall(rf"\bgettext\(({QUOTED})\)", script)}


def test_the_catalogue_has_every_text() -> None:
    """After a new text: make messages, translate it, and make messages again."""
    known = set(written("django"))
    assert len(messages_of_templates()) > 700
    assert sorted(messages_of_templates() - known) == []
    assert sorted(messages_of_code() - known) == []
    assert sorted(messages_of_scripts() - set(written("djangojs"))) == []


def quoted_in_sources() -> set[str]:
    """Every text that a template marks or code quotes: what is chosen from a table is marked elsewhere."""
    found = set()
    for path in (ROOT / "templates").rglob("*.*"):
        quoted = re.findall(rf"u?(?:{QUOTED})", templatize(path.read_text()), re.DOTALL)
        found |= {ast.literal_eval(text) for text in quoted}
    for folder in ("portal", "billing", "api", "config"):
        for path in (ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            found |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return found


def test_the_catalogue_has_no_text_that_is_nowhere() -> None:
    assert sorted(set(written("django")) - quoted_in_sources()) == []
    assert sorted(set(written("djangojs")) - messages_of_scripts()) == []


def test_no_text_takes_the_place_of_a_month_or_a_day() -> None:
    """Dates are written with Django's own texts, which a text of ours would replace: "May" is a month there."""
    with translation.override("en"):
        named = (dates.MONTHS, dates.MONTHS_3, dates.WEEKDAYS, dates.WEEKDAYS_ABBR)
        taken = {str(name) for names in named for name in names.values()}
    assert "May" in taken
    assert not taken & set(written("django"))


def test_no_page_has_words_outside_the_catalogue() -> None:
    """Between its tags a template has no words of its own; names of things stand in a few."""
    loose = []
    for path in (ROOT / "templates" / "portal").rglob("*.html"):
        if any(part in str(path) for part in ELSEWHERE):
            continue
        text = re.sub(
            r"\{% blocktranslate.*?endblocktranslate %\}|\{% block card_class %\}.*?\{% endblock %\}|\{[%{#].*?[%}#]\}",
            "",
            path.read_text(),
            flags=re.DOTALL,
        )
        text = re.sub(r"<(script|pre)\b.*?</\1>", "", text, flags=re.DOTALL)
        loose += [f"{path.name}: {word.strip()}" for word in re.findall(r">([^<>]*[A-Za-z]{3}[^<>]*)<", text)]
    assert loose == []


def test_the_browser_asks_and_the_account_decides(cast: Cast, signed_in: Any) -> None:
    visitor = Client(headers={"accept-language": "de-DE,de;q=0.9,en;q=0.5"})
    assert "Anmelden" in visitor.get("/accounts/login/").content.decode()
    assert '<html lang="de">' in visitor.get("/").content.decode()
    browser = signed_in(cast.ada)
    page = reverse("portal:limits", args=[cast.organization.slug])
    assert "No limits are set" in browser.get(page).content.decode()
    assert browser.post(reverse("portal:profile"), {"name": "Ada", "language": "xx"}).status_code == 400
    browser.post(reverse("portal:profile"), {"name": "Ada", "language": "de"})
    answer = browser.get(page, headers={"accept-language": "en"})
    assert "Keine Limits gesetzt" in answer.content.decode()
    assert answer.headers["Content-Language"] == "de"
    # Programs read English.
    assert browser.get("/api/me", headers={"accept-language": "de"}).headers["Content-Language"] == "en"


def test_scripts_have_their_texts() -> None:
    german = Client().get(reverse("portal:script_texts", args=["de"]))
    assert "Kopiert" in german.content.decode()
    assert "max-age" in german.headers["Cache-Control"]
    assert Client().get("/texts/xx.js").status_code == 404


def test_numbers_and_money_are_the_readers() -> None:
    assert (count(1_234_567), money(-1_234_500_000_000), duration(1240)) == ("1,234,567", "-$1,234.50", "1.24 s")
    with translation.override("de"):
        assert count(1_234_567) == "1.234.567"
        assert money(-1_234_500_000_000) == "-1.234,50\N{NO-BREAK SPACE}$"
        assert money(2_500_000_000, "EUR") == "2,50\N{NO-BREAK SPACE}€"
        assert duration(1240) == "1,24 s"
