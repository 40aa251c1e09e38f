"""The PDF says what the invoice says, on as many numbered pages as it needs."""

from datetime import UTC, datetime
from io import BytesIO

import pytest
from pypdf import PdfReader

from billing.accounts.services import change_address
from billing.invoices.pdf import render
from billing.invoices.services import draft_invoice, finalize_invoice, mark_paid, void_invoice
from tests.factories.billing import USD, make_account, make_calls, make_price

pytestmark = pytest.mark.django_db

IN_JUNE = datetime(2026, 6, 2, tzinfo=UTC)


def pages_of(invoice):
    return [page.extract_text() for page in PdfReader(BytesIO(render(invoice))).pages]


def draft(account):
    return draft_invoice(organization_id=account.organization_id, period="2026-05", now=IN_JUNE)


@pytest.fixture
def account(settings):
    settings.INVOICE_ISSUER = "Example Inference B.V.\nKeizersgracht 1\nVAT NL001234567B01"
    made = make_account(credit_nano=2 * USD, credit_limit_nano=10_000 * USD, time_zone="Europe/Warsaw")
    address = {
        "legal_name": "Zażółć & Gęślą GmbH",
        "address_line1": "Łąkowa 7",
        "city": "Łódź",
        "tax_id": "PL5260001246",
    }
    change_address(organization_id=made.organization_id, fields=address)
    make_calls(made, make_price(), prompt_tokens=2_500_000_000, cached_tokens=0, completion_tokens=1_000_000)
    return made


def test_everything_an_accountant_looks_for_is_there(account):
    invoice = finalize_invoice(draft(account), now=IN_JUNE)
    [page] = pages_of(invoice)
    for text in (
        "Example Inference B.V.",
        "VAT NL001234567B01",
        "Zażółć & Gęślą GmbH",
        "Łąkowa 7",
        "Łódź",
        "Tax ID PL5260001246",
        "ada@example.com",
        invoice.number,
        "2 June 2026",
        "2 July 2026",
        "1 to 31 May 2026 (Europe/Warsaw)",
        "m, input tokens",
        "2,500,000,000",
        "$0.40",
        "$1,000.00",
        "$2.03",
        "$1,002.03",
        "Prepaid credit applied",
        "-$2.00",
        "$1,000.03",
        "Please pay $1,000.03 by 2 July 2026.",
        "Page 1 of 1",
    ):
        assert text in page, text
    assert PdfReader(BytesIO(render(invoice))).metadata.title == f"Invoice {invoice.number}"
    assert render(invoice) == render(invoice)


def test_many_lines_repeat_the_head_and_count_the_pages(account):
    for number in range(30):
        make_calls(account, make_price(f"model-{number}"))
    pages = pages_of(finalize_invoice(draft(account), now=IN_JUNE))
    assert len(pages) > 2
    for number, page in enumerate(pages, start=1):
        assert f"Page {number} of {len(pages)}" in page
    assert "Description" in pages[1]
    assert "Total due" in pages[-1]


def test_a_preview_a_void_and_a_paid_one_say_so(account):
    assert any("PREVIEW" in page and "nothing is due" in page for page in pages_of(draft(account)))
    invoice = finalize_invoice(draft(account), now=IN_JUNE)
    voided = void_invoice(invoice, reason="test", now=IN_JUNE)
    assert any("VOID" in page and "voided on 2 June 2026" in page for page in pages_of(voided))
    again = finalize_invoice(draft(account), now=IN_JUNE)
    mark_paid(again, now=IN_JUNE)
    assert "Paid on 2 June 2026" in pages_of(again)[0]


def test_names_cannot_inject_markup(account):
    change_address(organization_id=account.organization_id, fields={"legal_name": "<b>A</b> <font size=99>& Co"})
    assert "<b>A</b> <font size=99>& Co" in pages_of(draft(account))[0]


def test_an_empty_month_is_still_a_page():
    assert "No usage in this period." in pages_of(draft(make_account()))[0]
