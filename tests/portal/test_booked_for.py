"""Reasons in the ledger: codes where billing booked by itself, told in the reader's language."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

from billing.ledger.models import CreditGrant
from billing.ledger.reasons import Reason, parse_reason
from billing.ledger.services import grant_credit
from portal.billing_pages.wording import REASONS, reason_text
from portal.users.models import User
from tests.factories.portal import Cast


def test_every_code_has_words_in_each_language() -> None:
    assert REASONS.keys() == set(Reason)
    for reason in Reason:
        stored = reason.about(12_345) if "about" in str(REASONS[reason]) else reason
        english = reason_text(stored)
        assert "@" not in english
        with translation.override("de"):
            assert reason_text(stored) not in {english, stored}
    with translation.override("de"):
        assert reason_text(Reason.VOLUME.about(12_345)) == "12.345 Token im letzten Monat"


@pytest.mark.parametrize("typed", ["Goodwill", "@free", "free_credit", "tax: 50 %", "", "ردّ المبلغ", "@receipts:1"])
def test_what_a_person_typed_is_shown_as_it_is(typed: str) -> None:
    assert parse_reason(typed) == (None, typed)
    assert reason_text(typed) == typed


@pytest.mark.parametrize(
    ("written", "now"),
    [
        ("Free credit", Reason.FREE_CREDIT),
        ("credit expired", Reason.CREDIT_EXPIRED),
        ("Code HACK-26: Hack day", Reason.PROMO_CODE.about("HACK-26: Hack day")),
        ("tax of top-up 7", Reason.TOP_UP_TAX.about(7)),
        ("tax of invoice 7", Reason.INVOICE_TAX.about(7)),
        ("rounding of invoice 7", Reason.INVOICE_ROUNDING.about(7)),
        ("payment of invoice INV-000007", Reason.INVOICE_PAYMENT.about("INV-000007")),
        ("credit note CN-000001: Outage", Reason.CREDIT_NOTE.about("CN-000001: Outage")),
        ("receipt engine-a#17", Reason.RECEIPT.about("engine-a#17")),
        ("1,234,567 tokens last month", Reason.VOLUME.about(1_234_567)),
    ],
)
def test_what_was_written_before_there_were_codes_is_told_as_codes_are(written: str, now: str) -> None:
    with translation.override("de"):
        assert reason_text(written) == reason_text(now) != written


def test_a_long_subject_is_cut_to_what_the_column_holds() -> None:
    assert len(Reason.CREDIT_NOTE.about(ascii_lowercase * 20)) == 300


@pytest.mark.django_db
def test_pages_speak_the_readers_language_and_paths_english(cast: Cast, signed_in: Callable[[User], Client]) -> None:
    organization = cast.organization
    assert set(CreditGrant.objects.filter(organization=organization).values_list("reason", flat=True)) == {
        Reason.FREE_CREDIT
    }
    grant_credit(organization_id=organization.id, amount_nano=10**9, reason="Goodwill", key="typed")
    client = signed_in(cast.ada)
    page = reverse("portal:ledger", args=[organization.slug])
    german = client.get(page, headers={"accept-language": "de"}).content.decode()
    assert "Startguthaben" in german
    assert "Goodwill" in german
    answer = client.get(reverse("api:ledger", args=[organization.slug]), headers={"accept-language": "de"}).json()
    assert [row["reason"] for row in answer["data"]] == ["Goodwill", "Free credit"]
