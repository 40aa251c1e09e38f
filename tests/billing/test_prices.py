"""Prices have history, are pinned, and rating is exact."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidPrice, RecordRefused
from billing.ledger.selectors import balance
from billing.pricing.models import Price
from billing.pricing.preview import preview_price
from billing.pricing.rating import RatedCost, hold_nano, rate
from billing.pricing.selectors import PriceInfo, current_price, price_by_id, price_history
from billing.pricing.services import Figures, give_discount
from billing.usage.models import UsageRecord
from billing.usage.services import finish_records, open_records
from tests.factories.billing import NOON, ending, make_account, make_calls, make_price, opening

LIST = PriceInfo(1, "m", 400_000_000, 100_000_000, 2_030_000_000, "USD", NOON)
rates = st.builds(
    PriceInfo,
    st.just(1),
    st.just("m"),
    st.integers(0, 10**11),
    st.none() | st.integers(0, 10**11),
    st.integers(0, 10**11),
    st.just("USD"),
    st.just(NOON),
)
counts = st.integers(0, 10**9).flatmap(lambda prompt: st.tuples(st.just(prompt), st.integers(0, prompt)))


def test_cached_tokens_are_paid_once():
    assert rate(LIST, 1000, 900, 100) == RatedCost(40_000, 90_000, 203_000)
    assert rate(LIST, 1000, 900, 100).total_nano == 333_000


def test_unset_cached_price_is_the_input_price():
    unset = PriceInfo(1, "m", 400_000_000, None, 0, "USD", NOON)
    assert rate(unset, 1000, 900, 0).total_nano == rate(unset, 1000, 0, 0).total_nano
    free = PriceInfo(1, "m", 400_000_000, 0, 0, "USD", NOON)
    assert rate(free, 1000, 1000, 0).total_nano == 0


@given(rates, counts, st.integers(0, 10**9))
def test_a_hold_covers_whatever_the_cache_does(price, prompt_and_cached, completion):
    prompt, cached = prompt_and_cached
    assert rate(price, prompt, cached, completion).total_nano <= hold_nano(price, prompt, completion)


@given(rates, counts, st.integers(0, 10**9), st.integers(0, 1000))
def test_more_tokens_never_cost_less(price, prompt_and_cached, completion, more):
    prompt, cached = prompt_and_cached
    base = rate(price, prompt, cached, completion).total_nano
    assert rate(price, prompt + more, cached, completion).total_nano >= base
    assert rate(price, prompt, cached, completion + more).total_nano >= base


@pytest.mark.parametrize("odd", [(10, 11, 0), (-1, 0, 0), (10, -1, 0), (10, 0, -1)])
def test_odd_counts_are_refused(odd):
    with pytest.raises(ValueError, match="cached must be within prompt"):
        rate(LIST, *odd)


@pytest.mark.django_db
class TestVersions:
    def test_the_version_in_force_is_found_by_date(self):
        old = make_price(at=NOON)
        new = make_price(at=NOON + timedelta(days=10), input_nano=1)
        assert current_price("m", NOON - timedelta(seconds=1)) is None
        assert current_price("m", NOON).price_id == old.id
        assert current_price("m", NOON + timedelta(days=10) - timedelta(microseconds=1)).price_id == old.id
        assert current_price("m", NOON + timedelta(days=10)).price_id == new.id
        assert [info.price_id for info in price_history("m")] == [new.id, old.id]
        assert price_by_id(old.id).input_nano == 400_000_000
        assert price_by_id(0) is None

    def test_an_organizations_own_price_wins_with_its_cached_rate(self):
        ada, ben = make_account(), make_account()
        make_price()
        own = make_price(organization_id=ada.organization_id, cached_input_nano=50_000_000)
        found = current_price("m", NOON, ada.organization_id)
        assert (found.price_id, found.cached_input_nano) == (own.id, 50_000_000)
        assert current_price("m", NOON, ben.organization_id).price_id != own.id
        [request_id] = make_calls(ada, own)
        assert UsageRecord.objects.get(request_id=request_id).cached_cost_nano == 45_000
        with pytest.raises(RecordRefused, match="not its own"):
            open_records([opening(ben, own)])

    def test_a_repeat_is_the_same_version_and_other_figures_are_refused(self):
        first = make_price()
        assert make_price().id == first.id
        with pytest.raises(InvalidPrice, match="pick a later date") as refused:
            make_price(input_nano=1)
        assert refused.value.field == "effective_from"
        with pytest.raises(InvalidPrice, match="below zero"):
            make_price("other", output_nano=-1)

    @pytest.mark.parametrize("change", ["update", "delete"])
    def test_the_database_refuses_to_change_a_price(self, change):
        found = Price.objects.filter(id=make_price().id)
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            found.update(input_nano=1) if change == "update" else found.delete()

    def test_a_new_version_never_reprices_calls_that_were_opened(self):
        account, old = make_account(credit_nano=10**12), make_price(at=NOON)
        make_calls(account, old, 10)
        in_flight = opening(account, old)
        open_records([in_flight])
        new = make_price(at=NOON + timedelta(hours=1), input_nano=4_000_000_000, output_nano=20_300_000_000)
        assert finish_records([ending(in_flight.request_id)]) == {in_flight.request_id: 333_000}
        make_calls(account, new, 10)
        costs = UsageRecord.objects.values_list("price_id", "cost_nano").distinct()
        assert dict(costs) == {old.id: 333_000, new.id: 400_000 + 90_000 + 2_030_000}

    def test_streaming_or_not_costs_the_same(self):
        account, price = make_account(credit_nano=10**12), make_price()
        make_calls(account, price, is_stream=True)
        make_calls(account, price, is_stream=False)
        assert set(UsageRecord.objects.values_list("cost_nano", flat=True)) == {333_000}


@pytest.mark.django_db
class TestCurrencies:
    """A list price in each currency; nothing is converted."""

    NOW = datetime(2026, 5, 15, tzinfo=UTC)

    def test_each_organization_pays_the_list_price_in_its_own_currency(self):
        dollars, euros, yen = (make_account(currency=code) for code in ("USD", "EUR", "JPY"))
        in_dollars = make_price()
        in_euros = make_price(currency="EUR", input_nano=370_000_000)
        assert current_price("m", self.NOW, dollars.organization_id).price_id == in_dollars.id
        assert current_price("m", self.NOW, euros.organization_id).price_id == in_euros.id
        assert current_price("m", self.NOW, yen.organization_id) is None
        assert current_price("m", self.NOW).price_id == in_dollars.id
        assert current_price("m", self.NOW, currency="EUR").price_id == in_euros.id
        # Same moment, same figures: the same version; one of another currency is another.
        assert make_price(currency="EUR", input_nano=370_000_000) == in_euros

    def test_an_agreed_price_is_in_the_organizations_currency(self):
        euros = make_account(currency="EUR")
        agreed = make_price(organization_id=euros.organization_id)
        assert agreed.currency == "EUR"
        assert current_price("m", self.NOW, euros.organization_id).price_id == agreed.id
        with pytest.raises(InvalidPrice, match="pays in EUR"):
            make_price(organization_id=euros.organization_id, currency="USD", at=self.NOW)

    def test_a_discount_follows_the_list_price_of_its_currency(self):
        euros = make_account(currency="EUR")
        make_price()
        make_price(currency="EUR", input_nano=370_000_000)
        give_discount(
            key="half",
            organization_id=euros.organization_id,
            basis_points=5000,
            effective_from=self.NOW,
            reason="start",
        )
        own = current_price("m", self.NOW, euros.organization_id)
        assert (own.currency, own.input_nano) == ("EUR", 185_000_000)
        later = self.NOW + timedelta(days=1)
        make_price(at=later, input_nano=1)
        make_price(at=later, currency="EUR", input_nano=100_000_000)
        assert current_price("m", later, euros.organization_id).input_nano == 50_000_000

    def test_a_call_is_recorded_billed_and_owed_in_euros(self):
        euros = make_account(currency="EUR", credit_limit_nano=10**12)
        price = make_price(currency="EUR")
        (request_id,) = make_calls(euros, price)
        record = UsageRecord.objects.get(request_id=request_id)
        assert record.cost_nano > 0
        owed = balance(euros.organization_id)
        assert (owed.currency, owed.receivable_nano) == ("EUR", -record.cost_nano)

    def test_a_preview_of_a_list_price_takes_its_currency_alone(self):
        for code in ("USD", "EUR"):
            make_calls(make_account(currency=code, credit_limit_nano=10**12), make_price(currency=code))
        month = {"start": NOON - timedelta(days=1), "end": NOON + timedelta(days=1)}
        found = preview_price(model="m", figures=Figures(0, 0, 0), currency="EUR", **month)
        assert found.requests == 1
