"""Numbers of the Union are looked up in the register, where one is configured; its answer decides who pays the tax."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import DatabaseError, transaction

from billing import tasks
from billing.accounts.services import change_address
from billing.tax.checks import check_tax_id, last_check, organizations_to_check
from billing.tax.models import TaxIdCheck
from billing.tax.selectors import tax_of
from billing.tax.services import set_rate
from billing.tax.vies import Answer, RegisterUnavailable, ViesClient
from tests.factories.billing import make_account
from tests.fakes.vies import FakeVies

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 15, 12, tzinfo=UTC)
NUMBER, ISSUER = "NL004495445B01", "DE136695976"


@pytest.fixture
def register(settings) -> Iterator[FakeVies]:
    with FakeVies() as running:
        settings.VIES_URL = running.url
        settings.INVOICE_ISSUER_COUNTRY, settings.INVOICE_ISSUER_TAX_ID = "DE", "DE 136 695 976"
        yield running


@pytest.fixture
def ada(db):
    set_rate(country="NL", name="btw", percent=Decimal(21), effective_from=date(2020, 1, 1), actor_id=None)
    account = make_account()
    return change_address(organization_id=account.organization_id, fields={"country": "NL", "tax_id": NUMBER})


def ask(account, now=NOW):
    return check_tax_id(organization_id=account.organization_id, now=now)


def kind_of(account):
    return tax_of(account, on=NOW.date()).kind


def test_a_number_that_the_register_knows_bears_a_reverse_charge_with_evidence(ada, register):
    register.known[NUMBER] = "Ada Analytical B.V."
    check = ask(ada)
    assert (check.is_valid, check.holder, check.consultation) == (True, "Ada Analytical B.V.", "WAPIAAAA00000001")
    assert register.asked == [
        {
            "countryCode": "NL",
            "vatNumber": NUMBER[2:],
            "requesterMemberStateCode": "DE",
            "requesterNumber": ISSUER[2:],
        }
    ]
    assert kind_of(ada) == "reverse"


def test_a_number_that_it_does_not_know_is_none(ada, register):
    assert kind_of(ada) == "reverse"
    assert not ask(ada).is_valid
    assert kind_of(ada) == "charged"
    assert TaxIdCheck.objects.get().holder == ""


@pytest.mark.parametrize("fault", [500, 503, 429, "MS_UNAVAILABLE", "MS_MAX_CONCURRENT_REQ"])
def test_while_it_is_away_the_form_counts_and_nothing_is_kept(ada, register, fault):
    register.fault = fault
    with pytest.raises(RegisterUnavailable):
        ask(ada)
    assert kind_of(ada) == "reverse"
    assert not TaxIdCheck.objects.exists()
    assert organizations_to_check(now=NOW) == [ada.organization_id]
    register.fault = None
    assert not ask(ada).is_valid


def test_nobody_listening_is_away_too(ada, settings):
    with FakeVies() as gone:
        address = gone.url
    with pytest.raises(RegisterUnavailable):
        ViesClient(address).check(NUMBER)


def test_a_number_is_asked_for_once_a_month_and_a_new_one_at_once(ada, register):
    register.known[NUMBER] = "Ada"
    first = ask(ada)
    assert ask(ada, NOW + timedelta(days=29)) == first
    assert organizations_to_check(now=NOW + timedelta(days=29)) == []
    del register.known[NUMBER]
    later = NOW + timedelta(days=31)
    assert organizations_to_check(now=later) == [ada.organization_id]
    assert not ask(ada, later).is_valid
    assert len(register.asked) == 2
    change_address(organization_id=ada.organization_id, fields={"country": "FR", "tax_id": "FR40303265045"})
    assert organizations_to_check(now=later) == [ada.organization_id]


def test_a_change_of_details_asks(ada, register, django_capture_on_commit_callbacks, monkeypatch):
    asked = []
    monkeypatch.setattr(tasks.check_tax_id, "delay", asked.append)
    with django_capture_on_commit_callbacks(execute=True):
        change_address(organization_id=ada.organization_id, fields={"country": "NL", "tax_id": NUMBER})
    with django_capture_on_commit_callbacks(execute=True):
        change_address(organization_id=ada.organization_id, fields={"city": "Delft"})
    assert asked == [ada.organization_id]


def test_without_a_register_and_outside_of_the_union_nobody_is_asked(ada, settings, register):
    elsewhere = make_account()
    fields = {"country": "CH", "tax_id": "CHE-107.787.577 MWST"}
    elsewhere = change_address(organization_id=elsewhere.organization_id, fields=fields)
    assert ask(elsewhere) is None
    assert not ask(ada).is_valid
    settings.VIES_URL = ""
    assert ask(ada) is None
    assert last_check(NUMBER) is None
    assert organizations_to_check(now=NOW) == []
    # Switched off, what was said before does not count either.
    assert kind_of(ada) == "reverse"
    assert len(register.asked) == 1


def test_an_answer_is_never_changed(ada, register):
    check = ask(ada)
    check.is_valid = True
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        check.save()


def test_an_asker_outside_of_the_union_asks_without_a_number(register):
    register.known[NUMBER] = "---"
    assert ViesClient(register.url).check(NUMBER) == Answer(True, "", "")
