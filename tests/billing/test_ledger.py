"""The ledger balances, is append-only, and what it keeps for speed is what its entries say."""

import random
import uuid
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from billing.accounts.services import change_credit_limit, open_account
from billing.errors import InvalidAccount, InvalidAmount, KeyReused, UnknownAccount
from billing.ledger import audit
from billing.ledger.models import (
    AccountKind,
    CreditGrant,
    GrantBalance,
    GrantKind,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    OrganizationBalance,
    TransactionKind,
)
from billing.ledger.posting import Entry, Posting, post
from billing.ledger.selectors import available_nano, balance, balance_nano, balances, grants, house_totals, statement
from billing.ledger.services import EXPIRY_GRACE, expire_credits, grant_credit
from billing.ledger.signals import balance_changed
from billing.ledger.wallet import GrantLeft, Wallet
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.models import UsageRecord
from billing.usage.services import finish_records, open_records
from tests.billing.concurrency import at_once
from tests.factories.billing import NOON, USD, ending, make_account, make_calls, make_price, opening

pytestmark = pytest.mark.django_db


def give(account, amount_nano, **fields):
    fields.setdefault("key", str(uuid.uuid4()))
    return grant_credit(organization_id=account.organization_id, amount_nano=amount_nano, reason="test", **fields)


def entries_of(key):
    rows = LedgerEntry.objects.filter(transaction__key=key).values_list("account__kind", "amount_nano")
    return dict(rows)


class TestAccounts:
    def test_opening_again_returns_the_same_unchanged(self):
        account = make_account()
        again = open_account(organization_id=account.organization_id, email="other@example.com", currency="EUR")
        assert (again.id, again.email, again.currency) == (account.id, "ada@example.com", "USD")

    @pytest.mark.parametrize(("field", "value"), [("currency", "XXX"), ("time_zone", "Mars/Olympus")])
    def test_odd_values_are_refused_by_name(self, field, value):
        with pytest.raises(InvalidAccount) as refused:
            open_account(organization_id=1, email="a@example.com", **{field: value})
        assert refused.value.field == field

    def test_an_organization_without_account_is_named(self):
        for ask in (balance, balance_nano, available_nano):
            with pytest.raises(UnknownAccount, match="Organization 12345"):
                ask(12345)


class TestGrants:
    def test_a_grant_is_a_balanced_transaction(self):
        ada = make_account()
        grant = give(ada, 5 * USD, key="free")
        assert entries_of("grant:free") == {"credit": 5 * USD, "promotions": -5 * USD}
        assert balance_nano(ada.organization_id) == 5 * USD
        assert grants(ada.organization_id)[0].grant_id == grant.id
        assert statement(ada.organization_id)[0].amount_nano == 5 * USD

    def test_the_same_key_gives_once(self):
        ada = make_account()
        assert give(ada, USD, key="k").id == give(ada, USD, key="k").id
        assert balance_nano(ada.organization_id) == USD
        with pytest.raises(KeyReused):
            give(ada, 2 * USD, key="k")
        with pytest.raises(KeyReused):
            give(make_account(), USD, key="k")
        assert balance_nano(ada.organization_id) == USD

    @pytest.mark.parametrize("amount_nano", [0, -1])
    def test_nothing_and_less_are_refused(self, amount_nano):
        with pytest.raises(InvalidAmount):
            give(make_account(), amount_nano)

    def test_listeners_hear_after_the_commit(self, django_capture_on_commit_callbacks):
        heard = []

        def listen(**signal):
            heard.append((signal["organization_id"], signal["delta_nano"]))

        balance_changed.connect(listen)
        try:
            with django_capture_on_commit_callbacks(execute=True):
                ada = make_account(credit_nano=USD)
                change_credit_limit(organization_id=ada.organization_id, credit_limit_nano=7)
                price = make_price()
                make_calls(ada, price)
        finally:
            balance_changed.disconnect(listen)
        assert heard == [(ada.organization_id, USD), (ada.organization_id, 7)]

    def test_credit_burns_by_priority_then_expiry_then_age(self):
        ada, price = make_account(), make_price()
        late = give(ada, 100_000, expires_at=NOON + timedelta(days=9))
        never = give(ada, 100_000)
        soon = give(ada, 100_000, expires_at=NOON + timedelta(days=2))
        first = give(ada, 100_000, priority=1)
        assert [row.grant_id for row in grants(ada.organization_id)] == [first.id, soon.id, late.id, never.id]
        [request_id] = make_calls(ada, price)
        left = dict(GrantBalance.objects.values_list("grant_id", "remaining_nano"))
        assert left == {first.id: 0, soon.id: 0, late.id: 0, never.id: 67_000}
        burnt = LedgerEntry.objects.filter(transaction__key=f"usage:{request_id}", grant__isnull=False)
        assert list(burnt.order_by("id").values_list("grant_id", "amount_nano")) == [
            (first.id, -100_000),
            (soon.id, -100_000),
            (late.id, -100_000),
            (never.id, -33_000),
        ]

    def test_a_request_burns_what_was_valid_when_it_began(self):
        ada, price = make_account(), make_price()
        grant = give(ada, USD, expires_at=NOON + timedelta(seconds=1))
        make_calls(ada, price, started_at=NOON, finished_at=NOON + timedelta(minutes=5))
        assert GrantBalance.objects.get(grant=grant).remaining_nano == USD - 333_000
        [request_id] = make_calls(ada, price, started_at=NOON + timedelta(seconds=1))
        assert entries_of(f"usage:{request_id}") == {"absorbed": -333_000, "revenue": 333_000}

    def test_expiry_takes_back_the_rest_once_after_the_grace(self):
        ada, ends = make_account(), NOON
        given_away = give(ada, USD, expires_at=ends)
        paid = give(ada, 2 * USD, expires_at=ends, kind=GrantKind.PURCHASE)
        assert available_nano(ada.organization_id, now=ends - timedelta(seconds=1)) == 3 * USD
        assert available_nano(ada.organization_id, now=ends) == 0
        assert expire_credits(now=ends + EXPIRY_GRACE - timedelta(seconds=1)) == 0
        assert balance_nano(ada.organization_id) == 3 * USD
        assert expire_credits(now=ends + EXPIRY_GRACE) == 2
        assert expire_credits(now=ends + EXPIRY_GRACE) == 0
        assert balance_nano(ada.organization_id) == available_nano(ada.organization_id) == 0
        assert entries_of(f"expiry:{given_away.id}") == {"credit": -USD, "promotions": USD}
        assert entries_of(f"expiry:{paid.id}") == {"credit": -2 * USD, "revenue": 2 * USD}


class TestPayers:
    def test_prepaid_never_goes_below_zero_and_the_house_bears_the_rest(self):
        ada, price = make_account(credit_nano=300_000), make_price()
        [request_id] = make_calls(ada, price)
        assert balance_nano(ada.organization_id) == 0
        assert entries_of(f"usage:{request_id}") == {"credit": -300_000, "absorbed": -33_000, "revenue": 333_000}

    def test_postpaid_burns_credit_first_and_owes_the_rest(self):
        ada, price = make_account(credit_nano=300_000, credit_limit_nano=USD), make_price()
        make_calls(ada, price, 2)
        state = balance(ada.organization_id)
        assert (state.credit_nano, state.receivable_nano) == (0, -366_000)
        assert state.available_nano == USD - 366_000

    def test_balances_of_many_come_in_one_query(self, django_assert_num_queries):
        accounts = [make_account(credit_nano=USD * n) for n in (1, 2, 3)]
        ids = [account.organization_id for account in accounts]
        with django_assert_num_queries(1):
            assert [state.balance_nano for state in balances(ids)] == [USD, 2 * USD, 3 * USD]
        assert len(balances()) >= 3


amounts = st.integers(1, 10**6)


@given(
    st.lists(st.tuples(amounts, st.none() | st.integers(0, 20)), max_size=6),
    st.lists(amounts, max_size=8),
    st.booleans(),
)
def test_a_wallet_pays_each_charge_exactly_and_never_overdraws(given_grants, charges, may_owe):
    accounts = {kind: number for number, kind in enumerate(AccountKind, start=1)}
    left = [
        GrantLeft(number, amount, None if day is None else NOON + timedelta(days=day))
        for number, (amount, day) in enumerate(given_grants, start=1)
    ]
    before = sum(grant.remaining_nano for grant in left)
    wallet = Wallet(1, "USD", 100 if may_owe else 0, accounts, left)
    burnt = 0
    for position, amount in enumerate(charges):
        at = NOON + timedelta(days=position)
        entries = wallet.charge(amount, at=at)
        assert sum(entry.amount_nano for entry in entries) == 0
        assert entries[-1] == Entry(accounts[AccountKind.REVENUE], amount)
        for entry in entries:
            if entry.grant_id is not None:
                burnt -= entry.amount_nano
                ends = left[entry.grant_id - 1].expires_at
                assert ends is None or ends > at
        forbidden = AccountKind.ABSORBED if may_owe else AccountKind.RECEIVABLE
        assert accounts[forbidden] not in {entry.account_id for entry in entries}
    assert all(grant.remaining_nano >= 0 for grant in left)
    assert before - burnt == sum(grant.remaining_nano for grant in left)


class TestDatabaseGuards:
    @pytest.fixture
    def account_ids(self):
        ada = make_account(credit_nano=USD)
        rows = LedgerAccount.objects.filter(currency="USD").values_list("kind", "organization_id", "id")
        return {kind: pk for kind, owner, pk in rows if owner in (None, ada.organization_id)}

    def write(self, *entries):
        """Past the services, as raw rows."""
        with transaction.atomic():
            made = LedgerTransaction.objects.create(kind=TransactionKind.GRANT, key=str(uuid.uuid4()))
            LedgerEntry.objects.bulk_create(
                LedgerEntry(transaction=made, account_id=account, amount_nano=amount) for account, amount in entries
            )
            with connection.cursor() as cursor:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
                cursor.execute("SET CONSTRAINTS ALL DEFERRED")

    def test_an_unbalanced_transaction_cannot_commit(self, account_ids):
        with pytest.raises(DatabaseError, match="does not sum to zero: 1 nano USD left"):
            self.write((account_ids["revenue"], 6), (account_ids["cash"], -5))
        with pytest.raises(DatabaseError, match="does not sum to zero"):
            self.write((account_ids["revenue"], 6))
        self.write((account_ids["revenue"], 6), (account_ids["cash"], -6))

    def test_a_transaction_balances_in_each_currency(self, account_ids):
        make_account(currency="EUR")
        euro_cash = LedgerAccount.objects.get(kind="cash", currency="EUR").id
        with pytest.raises(DatabaseError, match="does not sum to zero"):
            self.write((account_ids["revenue"], 6), (euro_cash, -6))

    @pytest.mark.parametrize("model", [LedgerEntry, LedgerTransaction, CreditGrant])
    @pytest.mark.parametrize("change", ["update", "delete"])
    def test_facts_are_append_only(self, account_ids, model, change):
        table = connection.ops.quote_name(model._meta.db_table)
        statement = f"UPDATE {table} SET id = id" if change == "update" else f"DELETE FROM {table}"  # noqa: S608
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)

    def test_an_entry_of_nothing_is_refused(self, account_ids):
        with pytest.raises(DatabaseError, match="not_zero"):
            self.write((account_ids["revenue"], 0), (account_ids["cash"], 0))

    def test_credit_below_zero_is_refused_by_the_database(self, account_ids):
        with pytest.raises(DatabaseError, match="billing_credit_not_negative"):
            self.write((account_ids["credit"], -USD - 1), (account_ids["revenue"], USD + 1))

    def test_the_same_act_is_not_posted_twice(self, account_ids):
        entries = (Entry(account_ids["revenue"], 1), Entry(account_ids["cash"], -1))
        posting = Posting(TransactionKind.PAYMENT, "payment:1", entries)
        post([posting])
        with pytest.raises(DatabaseError, match="unique"), transaction.atomic():
            post([posting])

    def test_a_posting_that_does_not_balance_is_not_even_made(self):
        with pytest.raises(ValueError, match="does not sum to zero"):
            Posting(TransactionKind.PAYMENT, "k", (Entry(1, 1),))


class TestAudit:
    def test_what_is_kept_is_rebuilt_from_the_entries(self):
        ada, ben = make_account(credit_nano=USD), make_account(credit_limit_nano=USD)
        price = make_price()
        make_calls(ada, price, 3)
        make_calls(ben, price, 2)
        assert audit.compare() == []
        OrganizationBalance.objects.filter(organization_id=ada.organization_id).update(credit_nano=5)
        OrganizationBalance.objects.filter(organization_id=ben.organization_id).update(receivable_nano=9)
        GrantBalance.objects.update(remaining_nano=1)
        found = {row.what: (row.kept, row.expected) for row in audit.compare()}
        assert found == {
            "credit of organization": (5, USD - 999_000),
            "receivable of organization": (9, -666_000),
            "rest of grant": (1, USD - 999_000),
        }
        audit.rebuild()
        assert audit.compare() == []
        assert balance_nano(ada.organization_id) == USD - 999_000
        assert house_totals()["revenue", "USD"] == 5 * 333_000


class Money(RuleBasedStateMachine):
    """Whatever happens in whatever order: sums are zero, credit is not negative, projections agree."""

    def __init__(self):
        super().__init__()
        self.price = make_price()
        self.accounts = [make_account(), make_account(credit_limit_nano=USD)]
        self.started, self.final, self.cost_nano = [], [], 0
        self.step = 0

    def pick(self, number):
        return self.accounts[number % len(self.accounts)]

    @rule(number=st.integers(0, 9), amount_nano=st.integers(1, 10**6), days=st.none() | st.integers(1, 30))
    def grant(self, number, amount_nano, days):
        give(self.pick(number), amount_nano, expires_at=None if days is None else NOON + timedelta(days=days))

    @rule(number=st.integers(0, 9))
    def open(self, number):
        self.step += 1
        row = opening(self.pick(number), self.price, started_at=NOON + timedelta(hours=self.step))
        open_records([row, row])
        self.started.append(row.request_id)

    @rule(
        size=st.integers(1, 4), status=st.sampled_from(["completed", "cancelled", "failed"]), tokens=st.integers(0, 500)
    )
    def finish(self, size, status, tokens):
        batch, self.started = self.started[:size], self.started[size:]
        rows = [ending(request_id, status=status, completion_tokens=tokens) for request_id in batch]
        costs = finish_records(rows)
        assert finish_records(rows) == costs
        assert costs.keys() == set(batch)
        self.cost_nano += sum(costs.values())
        self.final += batch

    @rule(tokens=st.integers(0, 500))
    def correct(self, tokens):
        if self.final:
            record = UsageRecord.objects.select_related("price").get(request_id=self.final[-1])
            made = adjust_record(
                record=record,
                status=record.status,
                counts=Counts(1000, 900, tokens, 0),
                key=f"test:{self.step}:{tokens}:{record.request_id}",
                reason="test",
                now=NOON,
            )
            if made is not None:
                self.step += 1
                self.cost_nano += made.input_cost_nano + made.cached_cost_nano + made.output_cost_nano

    @rule(days=st.integers(0, 31))
    def expire(self, days):
        expire_credits(now=NOON + timedelta(days=days))

    @invariant()
    def everything_agrees(self):
        assert (LedgerEntry.objects.aggregate(total=Sum("amount_nano"))["total"] or 0) == 0
        assert audit.compare() == []
        state = {row.organization_id: row for row in balances([a.organization_id for a in self.accounts])}
        assert state[self.accounts[0].organization_id].receivable_nano == 0
        assert all(row.credit_nano >= 0 for row in state.values())
        assert sum(row.held_nano for row in state.values()) == len(self.started) * 1_000_000


def test_any_order_of_acts_keeps_the_ledger_right():
    run_state_machine_as_test(
        Money,
        settings=settings(
            max_examples=15,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_twenty_grants_under_one_key_give_once(self):
        ada = make_account()
        results = at_once(*[lambda: give(ada, USD, key="top-up").id] * 20)
        assert len(set(results)) == 1
        assert balance_nano(ada.organization_id) == USD

    def test_grants_and_charges_together_lose_nothing(self):
        ada, price = make_account(credit_nano=USD), make_price()
        rows = [opening(ada, price) for _ in range(40)]
        open_records(rows)
        acts = [lambda row=row: finish_records([ending(row.request_id)]) for row in rows[:8]]
        acts += [lambda: give(ada, 1000)] * 8
        random.shuffle(acts)
        assert not [result for result in at_once(*acts) if isinstance(result, Exception)]
        assert balance_nano(ada.organization_id) == USD - 8 * 333_000 + 8000
        assert audit.compare() == []
