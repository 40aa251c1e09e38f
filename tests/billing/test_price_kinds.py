"""Kinds, minimum, ends, discounts, volume and the preview of prices."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidPrice, KeyReused
from billing.invoices.services import draft_invoice, finalize_invoice
from billing.ledger import audit
from billing.money import divide_half_even
from billing.pricing.models import DiscountEnd, Price
from billing.pricing.preview import preview_price
from billing.pricing.rating import hold_nano, rate
from billing.pricing.selectors import PriceInfo, Tier, current_price, overrides, volume_tiers
from billing.pricing.services import Figures, end_discount, give_discount, set_volume_tiers
from billing.pricing.volume import apply_volume_tiers
from billing.rollups import services as rollups
from billing.usage.models import COST_KINDS, UsageRecord
from billing.usage.services import COST_COLUMNS
from tests.factories.billing import NOON, make_account, make_calls, make_price

amounts = st.integers(0, 10**11)
prices = st.builds(
    PriceInfo,
    st.just(1),
    st.just("m"),
    amounts,
    st.none() | amounts,
    amounts,
    st.just("USD"),
    st.just(NOON),
    cache_write_nano=st.none() | amounts,
    reasoning_nano=st.none() | amounts,
    minimum_nano=st.integers(0, 10**9),
)


@st.composite
def counts(draw):
    cached, written, rest = (draw(st.integers(0, 10**8)) for _ in range(3))
    reasoning, answer = (draw(st.integers(0, 10**8)) for _ in range(2))
    return cached + written + rest, cached, reasoning + answer, reasoning, written


@given(prices, counts())
def test_a_hold_covers_every_kind_and_the_minimum(price, tokens):
    assert rate(price, *tokens).total_nano <= hold_nano(price, tokens[0], tokens[2])


@given(prices, counts())
def test_a_call_costs_at_least_the_minimum_and_nothing_without_tokens(price, tokens):
    cost = rate(price, *tokens)
    assert cost.total_nano >= (price.minimum_nano if tokens[0] + tokens[2] else 0)
    assert cost.minimum_nano == 0 or cost.total_nano == price.minimum_nano
    assert min(cost) >= 0


def test_each_token_is_paid_once():
    price = PriceInfo(
        1, "m", 400_000_000, 100_000_000, 2_000_000_000, "USD", NOON, cache_write_nano=500_000_000, reasoning_nano=10**9
    )
    cost = rate(price, 1000, 600, 100, 40, 300)
    assert cost == (100 * 400, 600 * 100, 60 * 2000, 300 * 500, 40 * 1000, 0)


def test_costs_have_a_column_for_each_kind():
    assert {f"{kind}_cost_nano" for kind in COST_KINDS} == set(COST_COLUMNS)


@pytest.mark.django_db
class TestInvoices:
    def test_every_kind_stands_on_a_line_and_the_books_agree(self):
        account = make_account(credit_nano=10**12)
        price = make_price(reasoning_nano=5 * 10**9, cache_write_nano=5 * 10**8, minimum_nano=2_000_000)
        make_calls(account, price, 3, completion_tokens=1000, reasoning_tokens=400, cache_write_tokens=50)
        make_calls(account, price, 2, prompt_tokens=10, cached_tokens=0, completion_tokens=1)
        invoice = finalize_invoice(
            draft_invoice(organization_id=account.organization_id, period="2026-05", now=NOON + timedelta(days=40)),
            now=NOON + timedelta(days=40),
        )
        lines = {line.token_kind: (line.tokens, line.amount_nano) for line in invoice.lines.all()}
        assert lines["reasoning"] == (1200, 1200 * 5000)
        assert lines["cache_write"] == (150, 150 * 500)
        assert lines["output"] == (1802, 1802 * 2030)
        assert lines["input"] == (3 * 50 + 20, 170 * 400)
        assert lines["minimum"] == (0, 2 * (2_000_000 - 10 * 400 - 2030))
        assert invoice.usage_nano == sum(record.cost_nano for record in UsageRecord.objects.all())
        assert audit.compare() == []


@pytest.mark.django_db
class TestVersions:
    def test_a_campaign_ends_by_itself(self):
        usual = make_price()
        make_price(at=NOON, input_nano=1, effective_until=NOON + timedelta(days=7))
        assert current_price("m", NOON - timedelta(seconds=1)).price_id == usual.id
        assert current_price("m", NOON + timedelta(days=6)).input_nano == 1
        assert current_price("m", NOON + timedelta(days=7)).price_id == usual.id

    def test_an_end_before_the_start_is_refused(self):
        with pytest.raises(InvalidPrice, match="after it begins"):
            make_price(at=NOON, effective_until=NOON)

    def test_a_discount_follows_the_list_price_while_it_lasts(self):
        account = make_account()
        make_price()
        end = NOON + timedelta(days=30)
        discount = {
            "key": "deal",
            "organization_id": account.organization_id,
            "basis_points": 1250,
            "effective_from": NOON,
            "effective_until": end,
            "reason": "a good customer",
        }
        give_discount(**discount)
        give_discount(**discount)
        make_price(at=NOON + timedelta(days=10), input_nano=800_000_000)
        make_price("later", at=NOON + timedelta(days=20))
        own = account.organization_id

        def input_at(days, model="m", organization=own):
            return current_price(model, NOON + timedelta(days=days), organization).input_nano

        assert input_at(-1) == 400_000_000
        assert input_at(1) == 350_000_000
        assert input_at(11) == 700_000_000
        assert input_at(21, "later") == 350_000_000
        assert input_at(30) == 800_000_000
        assert input_at(11, organization=None) == 800_000_000
        assert [version.discount_basis_points for version in overrides("m")] == [1250, 1250]
        with pytest.raises(KeyReused):
            give_discount(**{**discount, "basis_points": 1})

    def test_a_discount_ends_early_and_what_it_had_replaced_comes_back(self):
        account = make_account()
        make_price()
        own = account.organization_id
        deal = {"organization_id": own, "reason": "r"}
        give_discount(key="first", basis_points=1000, effective_from=NOON, **deal)
        second = give_discount(key="second", basis_points=5000, effective_from=NOON + timedelta(days=1), **deal)
        make_price(at=NOON + timedelta(days=2), input_nano=800_000_000)
        early = NOON + timedelta(days=3)

        def input_at(days):
            return current_price("m", NOON + timedelta(days=days), own).input_nano

        assert [input_at(days) for days in (0, 1, 2, 9)] == [360_000_000, 200_000_000, 400_000_000, 400_000_000]
        end = end_discount(discount_id=second.id, at=early, reason="they left", actor_id=7)
        assert end_discount(discount_id=second.id, at=NOON, reason="again").pk == end.pk
        assert [input_at(days) for days in (0, 1, 2, 3, 9)] == [
            360_000_000, 200_000_000, 400_000_000, 720_000_000, 720_000_000,
        ]  # fmt: skip
        # A list price of later knows the first discount only.
        make_price(at=NOON + timedelta(days=10), input_nano=100_000_000)
        assert input_at(10) == 90_000_000
        ends = [version.effective_until for version in overrides("m") if version.discount_basis_points == 5000]
        assert ends == [early, early]
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            DiscountEnd.objects.update(ends_at=NOON)

    def test_of_two_discounts_the_one_that_began_last_counts_whatever_the_list_price_does(self):
        account = make_account()
        make_price()
        make_price(at=NOON + timedelta(days=5), input_nano=800_000_000)  # scheduled
        deal = {"organization_id": account.organization_id, "reason": "r"}
        give_discount(key="a", basis_points=1000, effective_from=NOON, **deal)
        until = NOON + timedelta(days=20)
        give_discount(
            key="b", basis_points=5000, effective_from=NOON + timedelta(days=1), effective_until=until, **deal
        )
        make_price(at=NOON + timedelta(days=9), input_nano=100_000_000)
        make_price(at=NOON + timedelta(days=9), input_nano=100_000_000)

        def input_at(days):
            # A moment later than the version of the same list price that the other discount had made before.
            at = NOON + timedelta(days=days, seconds=1)
            return current_price("m", at, account.organization_id).input_nano

        assert [input_at(days) for days in (0, 1, 5, 9, 20)] == [
            360_000_000, 200_000_000, 400_000_000, 50_000_000, 90_000_000,
        ]  # fmt: skip

    def test_a_discount_follows_an_agreed_price_that_ends(self):
        account = make_account()
        make_price()
        end = NOON + timedelta(days=5)
        make_price(at=NOON, organization_id=account.organization_id, input_nano=5, effective_until=end)
        give_discount(
            key="d", organization_id=account.organization_id, basis_points=5000, effective_from=NOON, reason="r"
        )
        assert current_price("m", NOON + timedelta(days=4), account.organization_id).input_nano == 5
        assert current_price("m", end, account.organization_id).input_nano == 200_000_000

    def test_a_discount_that_is_over_cannot_end(self):
        account = make_account()
        make_price()
        tomorrow = NOON + timedelta(days=1)
        discount = give_discount(
            key="d", organization_id=account.organization_id, basis_points=1, effective_from=NOON,
            effective_until=tomorrow, reason="r",
        )  # fmt: skip
        with pytest.raises(InvalidPrice, match="over since"):
            end_discount(discount_id=discount.id, at=tomorrow, reason="r")

    def test_an_agreed_price_beats_a_discount(self):
        account = make_account()
        make_price()
        make_price(at=NOON, organization_id=account.organization_id, input_nano=5)
        tomorrow = NOON + timedelta(days=1)
        give_discount(
            key="d", organization_id=account.organization_id, basis_points=5000, effective_from=tomorrow, reason="r"
        )
        make_price(at=NOON + timedelta(days=2), input_nano=900_000_000)
        assert current_price("m", NOON + timedelta(days=3), account.organization_id).input_nano == 5
        assert Price.objects.filter(discount__isnull=False).count() == 0

    def test_volume_of_last_month_gives_this_months_discount_once(self):
        big, small = make_account(credit_nano=10**12), make_account(credit_nano=10**12)
        price = make_price()
        make_calls(big, price, 3, prompt_tokens=500_000, cached_tokens=0)
        make_calls(small, price, 1, prompt_tokens=500_000, cached_tokens=0)
        rollups.take_pending(now=NOON)
        set_volume_tiers([Tier(1_000_000, 500), Tier(2_000_000, 1000)])
        june = datetime(2026, 6, 1, 1, tzinfo=UTC)
        assert apply_volume_tiers(now=june) == 1
        assert apply_volume_tiers(now=june + timedelta(hours=1)) == 0
        assert current_price("m", june, big.organization_id).input_nano == 380_000_000
        assert current_price("m", june, small.organization_id).input_nano == 400_000_000
        assert current_price("m", datetime(2026, 7, 1, tzinfo=UTC), big.organization_id).input_nano == 400_000_000

    def test_tiers_that_do_not_rise_are_refused(self):
        with pytest.raises(InvalidPrice, match="must be higher"):
            set_volume_tiers([Tier(10, 500), Tier(20, 500)])
        set_volume_tiers([Tier(10, 500)])
        set_volume_tiers([Tier(20, 700)])
        assert volume_tiers() == [Tier(20, 700)]


@pytest.mark.django_db
class TestPreview:
    def test_the_preview_rates_each_call_as_it_would_be_billed(self):
        account, other = make_account(credit_nano=10**12), make_account(credit_nano=10**12)
        price = make_price()
        sizes = [(7, 3, 5, 2), (1000, 900, 100, 0), (12345, 1, 1, 1), (0, 0, 0, 0), (125, 25, 75, 25)]
        for prompt, cached, completion, reasoning in sizes:
            make_calls(account, price, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion,
                       reasoning_tokens=reasoning)  # fmt: skip
        make_calls(account, price, status="failed")
        own = make_price(at=NOON - timedelta(days=1), organization_id=other.organization_id, input_nano=1)
        make_calls(other, own, 2)
        # 0.02 nano a token: ties and odd rests appear.
        figures = Figures(20_000, None, 500_000, reasoning_nano=100_000, minimum_nano=7)
        start, end = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
        preview = preview_price(model="m", figures=figures, start=start, end=end)
        (change,) = preview.changes
        proposed = PriceInfo(0, "m", 20_000, None, 500_000, "USD", NOON, reasoning_nano=100_000, minimum_nano=7)
        assert change.organization_id == account.organization_id
        assert change.requests == len(sizes)
        assert change.proposed_nano == sum(rate(proposed, *size).total_nano for size in sizes)
        assert change.billed_nano == sum(rate(price, *size).total_nano for size in sizes)
        of_one = preview_price(model="m", figures=figures, start=start, end=end, organization_id=other.organization_id)
        assert (of_one.requests, len(of_one.changes)) == (2, 1)
        assert Price.objects.count() == 2

    @pytest.mark.parametrize("tokens", [1, 2, 3, 5, 25, 50, 75, 125])
    def test_ties_are_rounded_to_the_even(self, tokens):
        account = make_account(credit_nano=10**12)
        make_calls(account, make_price(), prompt_tokens=tokens, cached_tokens=0, completion_tokens=0)
        preview = preview_price(model="m", figures=Figures(500_000, None, 0), start=NOON, end=NOON + timedelta(days=1))
        assert preview.proposed_nano == divide_half_even(tokens * 500_000, 1_000_000)
