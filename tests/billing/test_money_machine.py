"""Credit and invoices taken through acts in any order: after each, the books say what the papers say."""

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from billing.credits import promo, refunds, topups
from billing.credits.models import Refund, TopUp, TopUpKind
from billing.errors import BillingError, PromoCodeRefused, RefundRefused
from billing.fees.services import add_fee
from billing.invoices import lifecycle
from billing.invoices.credit_notes import issue_credit_note
from billing.invoices.models import CreditNote, Invoice, InvoiceStatus
from billing.invoices.selectors import due_minor
from billing.invoices.services import (
    draft_invoice,
    finalize_invoice,
    mark_past_due,
    mark_sent,
    void_invoice,
    write_off,
)
from billing.ledger import audit
from billing.ledger.models import GrantBalance, LedgerEntry
from billing.ledger.selectors import balance
from billing.ledger.services import expire_credits, grant_credit
from billing.money import from_minor
from billing.payments.booking import record_payment
from billing.payments.gateway import RefundFact, TopUpFact
from billing.tax.services import set_rate
from billing.usage.models import UsageRecord
from tests.factories.billing import NOON, USD, make_account, make_calls, make_price

CENTS = st.integers(1, 500)
ACTS = st.sampled_from(["send", "due", "pay", "void", "give up", "credit"])
JUNE = datetime(2026, 6, 2, tzinfo=UTC)
QUICK = settings(
    max_examples=6,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class InTransaction(RuleBasedStateMachine):
    """Each example is rolled back; the machine has an account of its own."""

    limit_nano = 0

    def __init__(self):
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.account = make_account(credit_limit_nano=self.limit_nano)
        self.price = make_price(f"machine-{id(self)}")
        self.keys = itertools.count()

    def teardown(self):
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    @property
    def organization_id(self):
        return self.account.organization_id

    def key(self):
        return f"machine:{id(self)}:{next(self.keys)}"

    @invariant()
    def the_books_agree(self):
        assert audit.compare() == []

    def use(self, cents, started_at):
        tokens = cents * 25_000
        make_calls(
            self.account,
            self.price,
            prompt_tokens=tokens,
            cached_tokens=0,
            completion_tokens=0,
            started_at=started_at,
        )
        return cents


class Credit(InTransaction):
    """Grants, purchases, refunds, codes, usage and expiry, against a model that only adds and takes away."""

    def __init__(self):
        super().__init__()
        self.now = NOON
        self.code = promo.make_code(
            code="",
            description="m",
            amount_nano=2 * USD,
            currency="USD",
            max_redemptions=1,
            valid_from=NOON - timedelta(days=1),
            valid_until=None,
            credit_days=None,
            actor_id=None,
        )
        self.expected_nano = 0

    @rule(cents=CENTS)
    def give(self, cents):
        key = self.key()
        for _ in range(2):
            grant_credit(
                organization_id=self.organization_id, amount_nano=from_minor(cents, "USD"), reason="m", key=key
            )
        self.expected_nano += from_minor(cents, "USD")

    @rule(cents=st.integers(500, 3000), ways=st.lists(st.sampled_from(["paid", "failed", "expired"]), max_size=4))
    def buy(self, cents, ways):
        top_up = topups.make_top_up(
            organization_id=self.organization_id,
            kind=TopUpKind.CHECKOUT,
            amount_minor=cents,
            key=self.key(),
            keeps_card=False,
            actor_id=None,
        )
        for state in ways:
            fact = TopUpFact(top_up.id, state, "cs", f"pi_{top_up.id}", top_up.total_minor, "USD")
            topups.settle("machine", fact, now=self.now)
        top_up.refresh_from_db()
        assert (top_up.state == "paid") == ("paid" in ways)
        if "paid" in ways:
            self.expected_nano += from_minor(cents, "USD")

    @precondition(lambda self: TopUp.objects.filter(organization_id=self.organization_id, state="paid").exists())
    @rule(cents=CENTS, succeeds=st.booleans())
    def refund(self, cents, succeeds):
        top_up = TopUp.objects.filter(organization_id=self.organization_id, state="paid").latest("id")
        left = refunds.refundable_minor(top_up)
        try:
            made = refunds.start_refund(top_up=top_up, amount_minor=cents, reason="m", key=self.key(), actor_id=None)
        except RefundRefused:
            assert cents > left
            return
        fact = RefundFact(made.id, "re", "succeeded" if succeeds else "failed")
        for _ in range(2):
            refunds.settle(fact, now=self.now)
        if succeeds:
            self.expected_nano -= from_minor(cents, "USD")

    @rule()
    def redeem(self):
        try:
            promo.redeem(organization_id=self.organization_id, text=self.code.code, actor_id=None, now=self.now)
        except PromoCodeRefused:
            return
        self.expected_nano += 2 * USD

    @rule(cents=CENTS)
    def use_some(self, cents):
        self.use(cents, self.now)
        self.expected_nano -= min(self.expected_nano, from_minor(cents, "USD"))

    @rule()
    def expire(self):
        expire_credits(now=self.now)

    @invariant()
    def credit_is_what_came_less_what_went(self):
        credit_nano = balance(self.organization_id).credit_nano
        assert credit_nano == self.expected_nano >= 0
        left = GrantBalance.objects.filter(grant__organization_id=self.organization_id)
        assert (left.aggregate(total=Sum("remaining_nano"))["total"] or 0) == credit_nano

    @invariant()
    def refunds_never_pass_purchases(self):
        for top_up in TopUp.objects.filter(organization_id=self.organization_id):
            back = Refund.objects.filter(top_up=top_up).exclude(state="failed")
            assert (back.aggregate(total=Sum("amount_minor"))["total"] or 0) <= top_up.amount_minor


class Invoices(InTransaction):
    """Every act on every invoice: what is refused changes nothing, and the receivable is what the papers ask for."""

    limit_nano = 10**15

    def __init__(self):
        super().__init__()
        set_rate(country="DE", name="VAT", percent=Decimal(19), effective_from=JUNE.date(), actor_id=None)
        add_fee(
            organization_id=self.organization_id,
            name="Seats",
            quantity=3,
            unit_amount_minor=3_33,
            starts_on=JUNE.date().replace(day=9),
            now=JUNE,
            actor_id=None,
        )
        self.clock = datetime(2026, 7, 1, 12, tzinfo=UTC)

    def invoices(self):
        return Invoice.objects.filter(organization_id=self.organization_id)

    def pick(self, number):
        rows = list(self.invoices().order_by("id"))
        return rows[number % len(rows)] if rows else None

    @rule(cents=CENTS)
    def use_some(self, cents):
        self.use(cents, self.clock - timedelta(hours=20))

    @rule()
    def a_month_passes(self):
        self.clock += timedelta(days=31)

    @rule()
    def issue(self):
        period = f"{self.clock - timedelta(days=20):%Y-%m}"
        draft = draft_invoice(organization_id=self.organization_id, period=period, now=self.clock)
        finalize_invoice(draft, now=self.clock)

    @rule(
        number=st.integers(0, 9), act=st.sampled_from(["send", "due", "pay", "void", "give up", "credit"]), cents=CENTS
    )
    def act(self, number, act, cents):
        invoice = self.pick(number)
        if invoice is None:
            return
        old = InvoiceStatus(invoice.status)
        try:
            with transaction.atomic():
                self._do(invoice, act, cents)
        except BillingError:
            invoice.refresh_from_db()
            assert invoice.status == old
            return
        invoice.refresh_from_db()
        assert invoice.status == old or invoice.status in lifecycle.TRANSITIONS[old]

    def _do(self, invoice, act, cents):
        if act == "send":
            mark_sent(invoice.id, now=self.clock)
        elif act == "due":
            mark_past_due(now=self.clock)
        elif act == "pay":
            record_payment(invoice, reference=self.key(), actor_id=1, now=self.clock)
        elif act == "void":
            void_invoice(invoice, reason="m", now=self.clock)
        elif act == "give up":
            write_off(invoice, actor_id=None, reason="m", now=self.clock)
        else:
            issue_credit_note(
                invoice=invoice, total_minor=cents, reason="m", key=self.key(), actor_id=None, now=self.clock
            )

    @invariant()
    def what_is_owed_is_what_the_papers_ask_for(self):
        asked = sum(from_minor(due_minor(row), "USD") for row in self.invoices().exclude(status="uncollectible"))
        unbilled = UsageRecord.objects.filter(organization_id=self.organization_id, invoice=None)
        asked += unbilled.aggregate(total=Sum("cost_nano"))["total"] or 0
        assert balance(self.organization_id).receivable_nano == -asked

    @invariant()
    def tax_is_that_of_the_papers(self):
        papers = sum(row.tax_minor for row in self.invoices().exclude(status__in=["draft", "void"]))
        papers -= sum(note.tax_minor for note in CreditNote.objects.filter(invoice__in=self.invoices()))
        entries = LedgerEntry.objects.filter(account__kind="tax").aggregate(total=Sum("amount_nano"))["total"] or 0
        assert entries == from_minor(papers, "USD")

    @invariant()
    def numbers_have_no_gap_and_months_one_invoice(self):
        issued = self.invoices().exclude(status="draft")
        numbers = sorted(int(row.number.rpartition("-")[2]) for row in issued)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        live = list(self.invoices().exclude(status="void").values_list("period", flat=True))
        assert len(live) == len(set(live))


@pytest.mark.django_db
@pytest.mark.parametrize("machine", [Credit, Invoices])
def test_in_any_order(machine, settings):
    settings.INVOICE_ISSUER_COUNTRY = "DE"
    settings.TOP_UP_EXPIRY_DAYS = 0
    run_state_machine_as_test(machine, settings=QUICK)
