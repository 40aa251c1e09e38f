"""Which tax an invoice bears, and which tax numbers can exist."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from billing.accounts.services import change_address, change_tax_exemption
from billing.errors import InvalidAccount, InvalidTaxRate
from billing.invoices.selectors import document
from billing.invoices.services import draft_invoice, finalize_invoice, void_invoice
from billing.ledger import audit
from billing.ledger.models import LedgerEntry
from billing.ledger.selectors import balance
from billing.tax.decision import Buyer, Rate, TaxDecision, decide
from billing.tax.ids import parse
from billing.tax.models import TaxRate
from billing.tax.selectors import rates_in_force
from billing.tax.services import set_rate
from tests.factories.billing import USD, make_account, make_calls, make_price

RATES = {"DE": Rate("VAT", Decimal(19)), "FR": Rate("VAT", Decimal(20)), "US": Rate("Sales tax", Decimal("7.25"))}
IN_JUNE = datetime(2026, 6, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("issuer", "buyer", "expected"),
    [
        ("", Buyer("DE", True), ("none", 0)),
        ("DE", Buyer("DE", True), ("charged", 19)),
        ("DE", Buyer("", False), ("charged", 19)),
        ("DE", Buyer("FR", True), ("reverse", 0)),
        ("DE", Buyer("FR", False), ("charged", 20)),
        ("DE", Buyer("PL", False), ("none", 0)),
        ("DE", Buyer("PL", True), ("reverse", 0)),
        ("DE", Buyer("US", True), ("charged", Decimal("7.25"))),
        ("DE", Buyer("JP", False), ("none", 0)),
        ("DE", Buyer("DE", False, "certificate 7"), ("exempt", 0)),
        ("US", Buyer("DE", True), ("charged", 19)),
        ("CH", Buyer("FR", True), ("charged", 20)),
    ],
)
def test_who_sells_to_whom_decides(issuer, buyer, expected):
    decision = decide(issuer, buyer, RATES)
    assert (decision.kind, decision.percent) == expected


@given(base=st.integers(0, 10**12), percent=st.decimals(0, 99, places=4))
def test_tax_is_rounded_once_half_to_even(base, percent):
    exact = Decimal(base) * percent / 100
    assert abs(TaxDecision("charged", "VAT", percent).tax_minor(base) - exact) <= Decimal("0.5")


@pytest.mark.parametrize(
    ("country", "text", "value", "stripe_type"),
    [
        ("DE", "de 136.695-976", "DE136695976", "eu_vat"),
        ("DE", "136695976", "DE136695976", "eu_vat"),
        ("NL", "NL004495445B01", "NL004495445B01", "eu_vat"),
        ("FR", "FR40303265045", "FR40303265045", "eu_vat"),
        ("GR", "EL123456789", "EL123456789", "eu_vat"),
        ("AT", "ATU12345678", "ATU12345678", "eu_vat"),
        ("GB", "GB 980 7806 84", "GB980780684", "gb_vat"),
        ("CH", "CHE-107.787.577 MWST", "CHE107787577MWST", "ch_vat"),
        ("NO", "995525828 MVA", "995525828MVA", "no_vat"),
        ("AU", "51 824 753 556", "51824753556", "au_abn"),
        ("US", "12-3456789", "123456789", "us_ein"),
        ("BR", "12.345.678/0001-90", "12.345.678/0001-90", ""),
    ],
)
def test_numbers_are_brought_to_their_form(country, text, value, stripe_type):
    found = parse(country, text)
    assert (found.value, found.stripe_type) == (value, stripe_type)


@pytest.mark.parametrize(
    ("country", "text"),
    [
        ("DE", "DE13669597"),
        ("DE", "DE136695977"),
        ("NL", "NL004495446B01"),
        ("FR", "FR41303265045"),
        ("GB", "GB980780685"),
        ("AU", "51 824 753 557"),
        ("DE", "ATU12345678"),
        ("US", "1234"),
        ("DE", "DE１３６６９５９７６"),
    ],
)
def test_numbers_that_cannot_exist_are_refused(country, text):
    with pytest.raises(InvalidAccount, match="is no tax number of") as refused:
        parse(country, text)
    assert refused.value.field == "tax_id"


@pytest.fixture
def ada(db, settings):
    settings.INVOICE_ISSUER_COUNTRY = "DE"
    for country, percent in (("DE", "19"), ("FR", "20")):
        set_rate(country=country, name="VAT", percent=Decimal(percent), effective_from=date(2020, 1, 1), actor_id=None)
    account = make_account(credit_limit_nano=1000 * USD)
    make_calls(account, make_price(), prompt_tokens=250_000_000, cached_tokens=0, completion_tokens=0)
    return account


def issue(account):
    draft = draft_invoice(organization_id=account.organization_id, period="2026-05", now=IN_JUNE)
    return finalize_invoice(draft, now=IN_JUNE)


def address(account, **fields):
    change_address(organization_id=account.organization_id, fields=fields)


def test_tax_stands_on_the_invoice_and_in_the_ledger_and_a_void_takes_it_back(ada):
    address(ada, country="DE")
    invoice = issue(ada)
    assert (invoice.subtotal_minor, invoice.tax_minor, invoice.total_minor) == (100_00, 19_00, 119_00)
    assert balance(ada.organization_id).receivable_nano == -119 * USD
    entries = dict(LedgerEntry.objects.filter(transaction__kind="tax").values_list("account__kind", "amount_nano"))
    assert entries == {"receivable": -19 * USD, "tax": 19 * USD}
    printed = document(invoice)
    assert (printed.tax_label, printed.tax) == ("VAT 19%", "$19.00")
    void_invoice(invoice, reason="test")
    assert balance(ada.organization_id).receivable_nano == -100 * USD
    assert audit.compare() == []


def test_reverse_charge_says_so_and_charges_nothing(ada):
    address(ada, country="FR", tax_id="FR40303265045")
    invoice = issue(ada)
    assert (invoice.tax_kind, invoice.tax_minor, invoice.bill_to_tax_id) == ("reverse", 0, "FR40303265045")
    assert "Reverse charge" in document(invoice).tax_note


def test_a_consumer_elsewhere_in_the_union_pays_the_rate_of_their_country(ada):
    address(ada, country="FR")
    assert issue(ada).tax_minor == 20_00


def test_an_exempt_buyer_reads_why(ada):
    change_tax_exemption(organization_id=ada.organization_id, tax_exemption="Certificate 7")
    invoice = issue(ada)
    assert (invoice.tax_minor, document(invoice).tax_note) == (0, "Exempt from tax: Certificate 7.")


def test_credit_lowers_what_is_taxed(settings, db):
    settings.INVOICE_ISSUER_COUNTRY = "DE"
    set_rate(country="DE", name="VAT", percent=Decimal(19), effective_from=date(2020, 1, 1), actor_id=None)
    account = make_account(credit_nano=60 * USD, credit_limit_nano=1000 * USD)
    make_calls(account, make_price(), prompt_tokens=250_000_000, cached_tokens=0, completion_tokens=0)
    invoice = issue(account)
    assert (invoice.credit_minor, invoice.tax_minor, invoice.total_minor) == (60_00, 7_60, 47_60)


def test_an_odd_number_is_refused_where_it_is_entered(ada):
    with pytest.raises(InvalidAccount, match="check digits"):
        address(ada, country="DE", tax_id="DE136695977")


@pytest.mark.django_db
def test_rates_have_history_and_are_never_edited():
    first = set_rate(country="de", name="VAT", percent=Decimal(16), effective_from=date(2020, 7, 1), actor_id=None)
    set_rate(country="DE", name="VAT", percent=Decimal(19), effective_from=date(2021, 1, 1), actor_id=None)
    assert rates_in_force(date(2020, 12, 31))["DE"] == first
    assert rates_in_force(date(2021, 1, 1))["DE"].percent == 19
    assert rates_in_force(date(2020, 6, 30)) == {}
    with pytest.raises(InvalidTaxRate, match="pick another day"):
        set_rate(country="DE", name="VAT", percent=Decimal(7), effective_from=date(2021, 1, 1), actor_id=None)
    with pytest.raises(InvalidTaxRate, match="no rate"):
        set_rate(country="DE", name="VAT", percent=Decimal(100), effective_from=date(2022, 1, 1), actor_id=None)
    with pytest.raises(DatabaseError), transaction.atomic():
        TaxRate.objects.update(percent=1)
