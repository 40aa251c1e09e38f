"""Credit is bought, recharged, redeemed, given and paid back once, whatever is repeated, races or breaks."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from billing.accounts.services import change_address
from billing.credits import free, promo, recharge, refunds, topups
from billing.credits.models import AutoRecharge, FreeCreditClaim, PromoCode, PromoRedemption, Refund, TopUp
from billing.credits.selectors import refundable_top_ups
from billing.errors import (
    InvalidAmount,
    KeyReused,
    NoCardKept,
    PaymentProviderError,
    PaymentsNotConfigured,
    PromoCodeRefused,
    RefundRefused,
)
from billing.ledger import audit
from billing.ledger.models import CreditGrant, LedgerEntry
from billing.ledger.selectors import balance
from billing.tax.services import set_rate
from tests.billing.concurrency import at_once
from tests.factories.billing import USD, make_account, make_calls, make_price
from tests.fakes.stripe.payments import DECLINED, WANTS_OWNER

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 20, 9, tzinfo=UTC)
BACK = "https://portal.example/top-ups/{id}"
_keys = (f"form-{number}" for number in itertools.count())


@pytest.fixture
def ada():
    return make_account()


def buy(account, gateway, amount_minor=50_00, *, key=None, keeps_card=False):
    return topups.open_checkout(
        organization_id=account.organization_id,
        amount_minor=amount_minor,
        key=key or next(_keys),
        keeps_card=keeps_card,
        return_url=BACK,
        actor_id=None,
        gateway=gateway,
    )


def paid(account, fake, gateway, amount_minor=50_00, **options):
    top_up = buy(account, gateway, amount_minor, **options)
    fake.store.complete_checkout(top_up.session_id)
    return topups.refresh(top_up, gateway=gateway, now=NOW)


def house(kind):
    return sum(LedgerEntry.objects.filter(account__kind=kind).values_list("amount_nano", flat=True))


class TestCheckout:
    def test_a_payment_on_the_page_becomes_credit(self, ada, fake, gateway, tell):
        top_up = buy(ada, gateway)
        [session] = fake.store.all("checkout.session")
        assert (top_up.state, top_up.url) == ("open", session["url"])
        assert session["success_url"] == f"https://portal.example/top-ups/{top_up.id}"
        assert balance(ada.organization_id).credit_nano == 0
        fake.store.complete_checkout(session["id"])
        [completed] = fake.events("checkout.session.completed")
        assert tell(completed) == "applied"
        top_up.refresh_from_db()
        assert (top_up.state, top_up.grant.amount_nano, top_up.grant.kind) == ("paid", 50 * USD, "purchase")
        assert balance(ada.organization_id).credit_nano == 50 * USD
        assert house("cash") == -50 * USD
        assert audit.compare() == []

    def test_every_event_of_a_payment_books_it_once_in_any_order(self, ada, fake, gateway, tell):
        top_up = buy(ada, gateway)
        fake.store.complete_checkout(top_up.session_id)
        told = [*fake.events("payment_intent.succeeded"), *fake.events("checkout.session.completed")]
        assert [tell(event) for event in [*told, *told]] == ["applied", "repeated", "applied", "repeated"]
        assert CreditGrant.objects.count() == 1

    def test_the_payer_who_comes_back_first_sees_the_credit(self, ada, fake, gateway, tell):
        top_up = paid(ada, fake, gateway)
        assert top_up.state == "paid"
        assert tell(fake.events("checkout.session.completed")[0]) == "repeated"

    def test_a_form_sent_twice_opens_one_page(self, ada, fake, gateway):
        first, again = (buy(ada, gateway, key="form-x") for _ in range(2))
        assert (first.id, first.url) == (again.id, again.url)
        assert len(fake.store.all("checkout.session")) == 1
        with pytest.raises(KeyReused):
            buy(ada, gateway, 60_00, key="form-x")

    @pytest.mark.parametrize("fault", [{"kind": "error"}, {"kind": "lost_answer"}])
    def test_a_fault_at_stripe_opens_one_page_at_the_next_try(self, ada, fake, gateway, fault):
        fake.fail(path="/v1/checkout/sessions", **fault)
        with pytest.raises(PaymentProviderError):
            buy(ada, gateway, key="form-y")
        fake.api._answers.clear()
        assert buy(ada, gateway, key="form-y").url
        assert len(fake.store.all("checkout.session")) == 1

    def test_a_refused_card_leaves_the_page_open_for_another(self, ada, fake, gateway, tell):
        top_up = buy(ada, gateway)
        fake.store.complete_checkout(top_up.session_id, card=DECLINED)
        assert tell(fake.events("payment_intent.payment_failed")[0]) == "ignored"
        fake.store.complete_checkout(top_up.session_id)
        assert tell(fake.events("checkout.session.completed")[0]) == "applied"

    def test_a_page_that_lapsed_gives_nothing(self, ada, fake, gateway, tell):
        top_up = buy(ada, gateway)
        fake.store.expire_session(top_up.session_id)
        assert tell(fake.events("checkout.session.expired")[0]) == "applied"
        top_up.refresh_from_db()
        assert (top_up.state, balance(ada.organization_id).credit_nano) == ("expired", 0)

    def test_another_sum_than_asked_for_is_for_a_person(self, ada, fake, gateway, tell):
        top_up = buy(ada, gateway)
        fake.store.get("checkout.session", top_up.session_id)["amount_total"] = 1
        fake.store.complete_checkout(top_up.session_id)
        assert tell(fake.events("checkout.session.completed")[0]) == "unmatched"
        assert not CreditGrant.objects.exists()

    def test_tax_is_charged_on_top_and_kept_apart(self, ada, fake, gateway, settings):
        settings.INVOICE_ISSUER_COUNTRY = "DE"
        set_rate(country="DE", name="VAT", percent=19, effective_from=NOW.date(), actor_id=None)
        top_up = paid(ada, fake, gateway)
        [session] = fake.store.all("checkout.session")
        assert (top_up.tax_minor, session["amount_total"], top_up.tax_note) == (9_50, 59_50, "VAT 19%")
        assert [line["price_data"]["product_data"]["name"] for line in session["line_items"]] == [
            "Credit $50.00",
            "VAT 19%",
        ]
        assert (house("tax"), house("cash"), balance(ada.organization_id).credit_nano) == (
            9_500_000_000,
            -59_500_000_000,
            50 * USD,
        )

    @pytest.mark.parametrize("amount_minor", [0, -1, 4_99, 50_000_01])
    def test_odd_amounts_are_refused_with_the_limits(self, ada, gateway, amount_minor):
        with pytest.raises(InvalidAmount, match=r"Between \$5.00 and \$50,000.00"):
            buy(ada, gateway, amount_minor)

    def test_without_a_provider_nothing_can_be_bought(self, ada, settings):
        settings.STRIPE_SECRET_KEY = ""
        with pytest.raises(PaymentsNotConfigured):
            buy(ada, None)

    def test_bought_credit_ends_when_the_settings_say(self, ada, fake, gateway, settings):
        settings.TOP_UP_EXPIRY_DAYS = 30
        assert paid(ada, fake, gateway).grant.expires_at == NOW + timedelta(days=30)
        settings.TOP_UP_EXPIRY_DAYS = 0
        assert paid(ada, fake, gateway).grant.expires_at is None

    def test_the_customer_has_the_tax_number_and_it_follows_a_change(self, ada, fake, gateway):
        change_address(organization_id=ada.organization_id, fields={"country": "AT", "tax_id": "ATU12345678"})
        buy(ada, gateway)
        change_address(organization_id=ada.organization_id, fields={"country": "DE", "tax_id": "DE136695976"})
        buy(ada, gateway)
        [customer] = fake.store.all("customer")
        assert [row["value"] for row in fake.store.all("tax_id")] == ["DE136695976", "ATU12345678"]
        assert customer["address"]["country"] == "DE"

    def test_the_database_refuses_another_amount_and_a_way_back(self, ada, fake, gateway):
        top_up = paid(ada, fake, gateway)
        for change in ({"amount_minor": 1}, {"state": "open", "grant": None}):
            with pytest.raises(DatabaseError), transaction.atomic():
                TopUp.objects.filter(id=top_up.id).update(**change)


@pytest.mark.django_db(transaction=True)
def test_one_payment_told_of_many_times_at_once_is_one_credit(fake, gateway, tell):
    ada = make_account()
    top_up = buy(ada, gateway)
    fake.store.complete_checkout(top_up.session_id)
    told = [*fake.events("payment_intent.succeeded"), *fake.events("checkout.session.completed")]
    acts = [lambda event=event: tell(event) for event in told * 5]
    outcomes = at_once(*acts, lambda: topups.refresh(top_up, gateway=gateway))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert balance(ada.organization_id).credit_nano == 50 * USD
    assert CreditGrant.objects.count() == 1


@pytest.fixture
def card(ada, fake, gateway):
    """Ada bought credit once and let us keep the card."""
    paid(ada, fake, gateway, 5_00, keeps_card=True)
    ada.refresh_from_db()
    assert ada.stripe_payment_method_id
    return ada


def rule(account, threshold_minor=10_00, amount_minor=20_00, ceiling_minor=100_00):
    return recharge.set_auto_recharge(
        organization_id=account.organization_id,
        is_enabled=True,
        threshold_minor=threshold_minor,
        amount_minor=amount_minor,
        monthly_ceiling_minor=ceiling_minor,
        now=NOW,
    )


class TestAutoRecharge:
    def test_it_needs_a_kept_card(self, ada):
        with pytest.raises(NoCardKept):
            rule(ada)

    def test_low_credit_is_recharged_once(self, card, fake, gateway):
        rule(card)
        assert recharge.organizations_to_recharge() == [card.organization_id]
        top_up = recharge.recharge(card.organization_id, gateway=gateway)
        assert (top_up.state, top_up.amount_minor, top_up.kind) == ("paid", 20_00, "recharge")
        assert balance(card.organization_id).credit_nano == 25 * USD
        assert recharge.organizations_to_recharge() == []
        assert recharge.recharge(card.organization_id, gateway=gateway) is None

    def test_a_deep_deficit_is_cleared_by_one_charge(self, card, fake, gateway):
        make_calls(card, make_price(), prompt_tokens=10_000_000, cached_tokens=0, completion_tokens=0)
        rule(card, threshold_minor=70_00, ceiling_minor=200_00)
        top_up = recharge.recharge(card.organization_id, gateway=gateway)
        assert top_up.amount_minor == 69_00
        assert balance(card.organization_id).available_nano == 70 * USD
        assert len(fake.store.all("payment_intent")) == 2

    @pytest.mark.parametrize("behaviour", [DECLINED, WANTS_OWNER])
    def test_a_refused_card_pauses_it_until_a_person_saves_it_again(self, card, fake, gateway, behaviour):
        card.stripe_payment_method_id = fake.store.attach(card.stripe_customer_id, behaviour)
        card.save()
        rule(card)
        top_up = recharge.recharge(card.organization_id, gateway=gateway)
        assert (top_up.state, "declined" in top_up.failure) == ("failed", True)
        assert AutoRecharge.objects.get().paused_reason == top_up.failure
        assert recharge.recharge(card.organization_id, gateway=gateway) is None
        card.stripe_payment_method_id = fake.store.attach(card.stripe_customer_id)
        card.save()
        rule(card)
        assert recharge.recharge(card.organization_id, gateway=gateway).state == "paid"

    @pytest.mark.parametrize("fault", [{"kind": "error"}, {"kind": "lost_answer"}])
    def test_a_charge_left_half_way_is_taken_up_and_not_made_twice(self, card, fake, gateway, fault):
        rule(card)
        fake.fail(path="/v1/payment_intents", **fault)
        with pytest.raises(PaymentProviderError):
            recharge.recharge(card.organization_id, gateway=gateway)
        fake.api._answers.clear()
        assert recharge.organizations_to_recharge() == [card.organization_id]
        assert recharge.recharge(card.organization_id, gateway=gateway).state == "paid"
        assert len(fake.store.all("payment_intent")) == 2

    def test_the_months_ceiling_holds_and_the_next_month_begins_anew(self, card, gateway):
        rule(card, threshold_minor=1000_00, amount_minor=20_00, ceiling_minor=50_00)
        assert recharge.recharge(card.organization_id, gateway=gateway).amount_minor == 50_00
        assert recharge.recharge(card.organization_id, gateway=gateway) is None
        later = datetime.now(UTC) + timedelta(days=32)
        assert recharge.recharge(card.organization_id, gateway=gateway, now=later).amount_minor == 50_00

    @given(
        available=st.integers(-(10**9), 10**7),
        threshold=st.integers(0, 10**6),
        amount=st.integers(1, 10**6),
        room=st.integers(0, 10**7),
        spent=st.integers(0, 10**7),
    )
    def test_what_is_charged_keeps_all_three_promises(self, available, threshold, amount, room, spent):
        setting = AutoRecharge(
            is_enabled=True, threshold_minor=threshold, amount_minor=amount, monthly_ceiling_minor=amount + room
        )
        charged = recharge.amount_to_charge(setting, available_minor=available, spent_minor=spent)
        assert charged == 0 or amount <= charged <= amount + room - spent
        if available >= threshold:
            assert charged == 0
        elif amount + room - spent >= max(amount, threshold - available):
            assert available + charged >= threshold


@pytest.mark.django_db(transaction=True)
def test_many_processes_that_see_the_deficit_make_one_charge(fake, gateway):
    ada = make_account()
    paid(ada, fake, gateway, 5_00, keeps_card=True)
    rule(ada)
    at_once(*[lambda: recharge.recharge(ada.organization_id, gateway=gateway)] * 6)
    assert balance(ada.organization_id).credit_nano == 25 * USD
    assert TopUp.objects.filter(kind="recharge").count() == 1
    assert len(fake.store.all("payment_intent")) == 2


class TestRefunds:
    def refund(self, top_up, amount_minor, key="refund-1"):
        return refunds.start_refund(top_up=top_up, amount_minor=amount_minor, reason="unused", key=key, actor_id=None)

    def test_unspent_credit_goes_back_as_money_with_its_tax(self, ada, fake, gateway, settings):
        settings.INVOICE_ISSUER_COUNTRY = "DE"
        set_rate(country="DE", name="VAT", percent=19, effective_from=NOW.date(), actor_id=None)
        top_up = paid(ada, fake, gateway)
        refund = self.refund(top_up, 20_00)
        assert balance(ada.organization_id).credit_nano == 30 * USD
        refund = refunds.send_refund(refund.id, gateway=gateway)
        assert (refund.state, refund.tax_minor) == ("succeeded", 3_80)
        assert fake.store.all("refund")[0]["amount"] == 23_80
        last = refunds.send_refund(self.refund(top_up, 30_00, "refund-2").id, gateway=gateway)
        assert last.tax_minor == 5_70
        assert (house("cash"), house("tax"), balance(ada.organization_id).credit_nano) == (0, 0, 0)
        assert audit.compare() == []

    def test_what_was_spent_is_not_paid_back(self, ada, fake, gateway):
        top_up = paid(ada, fake, gateway, 5_00)
        make_calls(ada, make_price(), prompt_tokens=10_000_000, cached_tokens=0, completion_tokens=0)
        assert [row.left_minor for row in refundable_top_ups(ada.organization_id)] == [1_00]
        with pytest.raises(RefundRefused, match=r"\$1.00 of this purchase is unspent"):
            self.refund(top_up, 1_01)

    def test_a_repeat_pays_back_once(self, ada, fake, gateway):
        top_up = paid(ada, fake, gateway)
        assert self.refund(top_up, 10_00).id == self.refund(top_up, 10_00).id
        with pytest.raises(KeyReused):
            self.refund(top_up, 11_00)
        refund = Refund.objects.get()
        fake.fail(path="/v1/refunds", kind="lost_answer")
        with pytest.raises(PaymentProviderError):
            refunds.send_refund(refund.id, gateway=gateway)
        fake.api._answers.clear()
        refunds.send_refund(refund.id, gateway=gateway)
        refunds.send_refund(refund.id, gateway=gateway)
        assert len(fake.store.all("refund")) == 1
        assert refunds.refunds_to_send() == []

    def test_a_refusal_and_a_bank_that_sends_it_back_return_the_credit(self, ada, fake, gateway, tell):
        top_up = paid(ada, fake, gateway)
        fake.store.get("payment_intent", top_up.payment_id)["amount_refunded"] = 50_00
        refused = refunds.send_refund(self.refund(top_up, 10_00).id, gateway=gateway)
        assert (refused.state, bool(refused.failure)) == ("failed", True)
        assert balance(ada.organization_id).credit_nano == 50 * USD
        fake.store.get("payment_intent", top_up.payment_id)["amount_refunded"] = 0
        refund = refunds.send_refund(self.refund(top_up, 10_00, "refund-2").id, gateway=gateway)
        fake.store.bounce(refund.external_id)
        assert tell(fake.events("refund.failed")[0]) == "applied"
        assert tell(fake.events("refund.created")[0]) == "repeated"
        assert balance(ada.organization_id).credit_nano == 50 * USD
        assert audit.compare() == []


def code(text="WELCOME-10", **fields):
    defaults = {
        "description": "Spring fair",
        "amount_nano": 10 * USD,
        "currency": "USD",
        "max_redemptions": 2,
        "valid_from": NOW - timedelta(days=1),
        "valid_until": NOW + timedelta(days=1),
        "credit_days": 30,
        "actor_id": None,
    }
    return promo.make_code(code=text, **{**defaults, **fields})


def redeem(account, text="welcome 10", now=NOW):
    return promo.redeem(organization_id=account.organization_id, text=text, actor_id=None, now=now)


class TestPromoCodes:
    def test_a_code_gives_its_credit_once_per_organization(self, ada):
        code()
        grant = redeem(ada)
        assert (grant.amount_nano, grant.expires_at) == (10 * USD, NOW + timedelta(days=30))
        with pytest.raises(PromoCodeRefused, match="redeemed by this organization") as refused:
            redeem(ada)
        assert refused.value.code == "promo_code_redeemed"
        assert balance(ada.organization_id).credit_nano == 10 * USD

    def test_the_last_redemption_is_the_last(self, ada):
        code(max_redemptions=1)
        redeem(ada)
        with pytest.raises(PromoCodeRefused, match="as often as it may be"):
            redeem(make_account())

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"text": "NOBODY"}, "unknown"),
            ({"now": NOW - timedelta(days=2)}, "not_yet"),
            ({"now": NOW + timedelta(days=1)}, "ended"),
        ],
    )
    def test_refusals_say_why(self, ada, change, reason):
        code()
        with pytest.raises(PromoCodeRefused) as refused:
            redeem(ada, **change)
        assert refused.value.code == f"promo_code_{reason}"
        assert PromoCode.objects.get().redeemed_count == 0

    def test_another_currency_and_a_code_that_is_off_are_refused(self, ada):
        made = code(currency="EUR")
        with pytest.raises(PromoCodeRefused, match="gives EUR; this account has USD"):
            redeem(ada)
        promo.set_active(promo_code_id=made.id, is_active=False)
        with pytest.raises(PromoCodeRefused, match="no such code"):
            redeem(ada)

    def test_a_made_up_code_is_long_and_fits_its_form(self):
        assert len(code("").code) == 14
        with pytest.raises(PromoCodeRefused, match="exists already"):
            code(PromoCode.objects.get().code.lower())


@pytest.mark.django_db(transaction=True)
def test_a_code_that_many_redeem_at_once_is_not_overdrawn():
    code(max_redemptions=3)
    accounts = [make_account() for _ in range(5)]
    results = at_once(*[lambda account=account: redeem(account) for account in accounts * 2])
    assert PromoCode.objects.get().redeemed_count == PromoRedemption.objects.count() == 3
    assert sum(isinstance(result, CreditGrant) for result in results) == 3
    assert sum(balance(account.organization_id).credit_nano for account in accounts) == 30 * USD


class TestFreeCredit:
    def give(self, account, email):
        return free.give_free_credit(organization_id=account.organization_id, email=email, actor_id=None)

    def test_once_per_person_however_the_address_is_written(self, ada):
        assert self.give(ada, "Ada.Lovelace@gmail.com").amount_nano == 5 * USD
        for again in ("adalovelace@gmail.com", "a.d.a.lovelace+x@GoogleMail.com", "ADA.LOVELACE@gmail.com."):
            assert self.give(make_account(), again) is None
        assert self.give(make_account(), "ada.lovelace@example.com")
        assert self.give(make_account(), "adalovelace@example.com")

    def test_once_per_organization_whoever_asks(self, ada):
        assert self.give(ada, "ada@example.com")
        assert self.give(ada, "ben@example.com") is None
        assert FreeCreditClaim.objects.count() == 1

    def test_domains_of_throw_away_mailboxes_get_none(self, ada, settings):
        settings.FREE_CREDIT_BLOCKED_DOMAINS = ["throwaway.example"]
        assert self.give(ada, "x@throwaway.example") is None
        assert self.give(ada, "x@mail.throwaway.example") is None
        assert self.give(ada, "x@notthrowaway.example")

    def test_the_address_itself_is_not_kept(self, ada):
        self.give(ada, "ada@example.com")
        assert "ada" not in FreeCreditClaim.objects.get().person_digest


@pytest.mark.django_db(transaction=True)
def test_twenty_organizations_of_one_person_at_once_get_one_free_credit():
    accounts = [make_account() for _ in range(6)]
    at_once(
        *[
            lambda account=account: free.give_free_credit(
                organization_id=account.organization_id, email="ada@example.com", actor_id=None
            )
            for account in accounts
        ]
    )
    assert sum(balance(account.organization_id).credit_nano for account in accounts) == 5 * USD
