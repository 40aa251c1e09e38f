"""Letters about invoices are in the invoice's language, with its dates and money."""

import ast
import gettext
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core import mail

from billing.accounts.services import LANGUAGES, change_language
from billing.dunning import services
from billing.invoices.mail import send_invoice
from billing.invoices.services import draft_invoice, finalize_invoice
from tests.factories.billing import make_account, make_calls, make_price

ROOT = Path(__file__).resolve().parents[2]
CATALOGS = sorted((ROOT / "billing" / "locale").glob("*/LC_MESSAGES/django.po"))
ISSUED = datetime(2026, 6, 1, 12, tzinfo=UTC)


def entries(path: Path) -> dict[str, str]:
    """Message and translation of a .po file; all of ours stand on one line each."""
    text = path.read_text()
    found = re.findall(r'^msgid (".*")\nmsgstr (".*")$', text, flags=re.MULTILINE)
    return {ast.literal_eval(key): ast.literal_eval(value) for key, value in found if key != '""'}


def sentences() -> set[str]:
    """What the letters' templates give to gettext."""
    found: set[str] = set()
    for path in (ROOT / "templates" / "emails").glob("*/*.txt"):
        if path.parent.name in ("invoice", "dunning"):
            text = path.read_text()
            found |= set(re.findall(r'{% translate "(.*?)" %}', text))
            blocks = re.findall(r"{% blocktranslate.*?%}(.*?){% endblocktranslate %}", text)
            found |= {re.sub(r"{{ (\w+) }}", r"%(\1)s", block) for block in blocks}
    return found


def test_every_sentence_has_a_translation_in_every_language_of_papers():
    assert len(sentences()) > 15
    assert {path.parts[-3] for path in CATALOGS} == set(LANGUAGES) - {"en"}
    for path in CATALOGS:
        translated = entries(path)
        assert set(translated) == sentences(), path
        for sentence, translation in translated.items():
            assert translation != sentence
            assert sorted(re.findall(r"%\(\w+\)s", translation)) == sorted(re.findall(r"%\(\w+\)s", sentence))


@pytest.mark.parametrize("path", CATALOGS, ids=lambda path: path.parts[-3])
def test_the_compiled_catalog_is_fresh(path):
    with path.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for sentence, translation in entries(path).items():
        assert compiled.gettext(sentence) == translation, "run msgfmt on the .po file"


def issue(language):
    account = make_account(credit_limit_nano=10**15)
    change_language(organization_id=account.organization_id, language=language)
    # $1,234.50 to pay.
    make_calls(account, make_price(), prompt_tokens=3_086_250_000, cached_tokens=0, completion_tokens=0)
    draft = draft_invoice(organization_id=account.organization_id, period="2026-05", now=ISSUED)
    return finalize_invoice(draft, now=ISSUED)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "Please pay $1,234.50 by 1 July 2026."),
        ("de", "Bitte zahlen Sie 1.234,50\u00a0$ bis zum 1. Juli 2026."),
        ("fr", "Merci de régler 1\u202f234,50\u00a0$ avant le 1 juillet 2026."),
        ("es", "Le rogamos que pague 1.234,50\u00a0$ a más tardar el 1 de julio de 2026."),
        ("nl", "Betaal $\u00a01.234,50 uiterlijk op 1 juli 2026."),
    ],
)
def test_the_letter_of_an_invoice_is_in_its_language(language, sentence):
    send_invoice(issue(language))
    message = mail.outbox[0]
    assert sentence in message.body
    # As HTML the same sentences.
    html, kind = message.alternatives[0]
    assert kind == "text/html"
    assert f'<html lang="{language}">' in html
    assert sentence in html


@pytest.mark.django_db
def test_reminders_are_in_the_language_of_the_invoice():
    invoice = issue("de")
    for day in range(27, 60):
        services.run_dunning(now=ISSUED + timedelta(days=day))
        for step_id, _ in services.steps_to_work():
            services.work_step(step_id, tries_card=False, now=ISSUED)
    assert [message.subject for message in mail.outbox] == [
        f"Rechnung {invoice.number} ist am 1. Juli 2026 fällig",
        f"Rechnung {invoice.number} ist überfällig",
        f"Mahnung: Rechnung {invoice.number} ist unbezahlt",
        f"Letzte Mahnung: Rechnung {invoice.number} ist unbezahlt",
        f"Gesperrt: Rechnung {invoice.number} ist unbezahlt",
    ]
    assert "am 22. Juli 2026 gesperrt" in mail.outbox[3].body
    for message in mail.outbox:
        assert "1.234,50\u00a0$" in message.body
        assert not re.search(r"\b(invoice|unpaid|the)\b", message.body)
