"""Operators look at a price before they set it, give discounts, and close months of reconciliation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.errors import InvalidTaxRate
from billing.invoices import runs
from billing.invoices.models import Invoice
from billing.invoices.runs import run_month
from billing.pricing.models import Price
from billing.pricing.selectors import current_price, discounts, price_history, volume_tiers
from billing.reconciliation.models import PeriodClose
from billing.reconciliation.services import apply_receipts, note_gateway_end
from billing.rollups import services as rollups
from billing.usage.services import finish_records, open_records
from portal.audit.models import AuditEvent
from portal.catalog.models import Model
from portal.operator import reconciliation_views
from portal.operator.models import InvoiceRun, RunOutcome
from portal.operator.services import execute_run
from portal.users.models import User
from tests.factories.billing import ending, make_account, make_calls, make_price, opening, receipt
from tests.factories.portal import Cast

pytestmark = pytest.mark.django_db
Browser = Callable[[User | None], Client]


@pytest.fixture
def calls(cast: Cast, model: Model) -> None:
    """Two billed calls on the first of last month."""
    account = BillingAccount.objects.get(organization=cast.organization)
    first = (timezone.now().replace(day=1) - timedelta(days=1)).replace(day=1, hour=12)
    price = Price.objects.get(model=model.name)
    rows = [opening(account, price, started_at=first) for _ in range(2)]
    open_records(rows)
    finish_records([ending(row.request_id, finished_at=first) for row in rows])


FIGURES = {"input_price": "4", "cached_input_price": "1", "output_price": "20.3", "minimum": "0.0001"}


def test_a_preview_shows_last_month_and_saves_nothing(
    cast: Cast, model: Model, signed_in: Browser, calls: None
) -> None:
    address = reverse("portal:operator_price", args=[model.id])
    answer = signed_in(cast.oda).post(address, {**FIGURES, "preview": "1"})
    assert answer.status_code == 200
    preview = answer.context["preview"].sum
    assert (preview.requests, preview.billed_nano, preview.proposed_nano) == (2, 666_000, 6_660_000)
    assert b"would have cost" in answer.content
    assert len(price_history(model.name)) == 1


def test_every_kind_of_price_is_set_and_shown(cast: Cast, model: Model, signed_in: Browser) -> None:
    browser = signed_in(cast.oda)
    form = {**FIGURES, "cache_write_price": "5", "reasoning_price": "10"}
    assert browser.post(reverse("portal:operator_price", args=[model.id]), form).status_code == 302
    price = current_price(model.name, timezone.now())
    assert price is not None
    assert (price.cache_write_nano, price.reasoning_nano, price.minimum_nano) == (5 * 10**9, 10**10, 100_000)
    assert b"0.0001" in browser.get(reverse("portal:operator_model", args=[model.id])).content


def test_a_price_for_a_taken_moment_is_refused_in_the_readers_language(
    cast: Cast, model: Model, signed_in: Browser
) -> None:
    address, browser = reverse("portal:operator_price", args=[model.id]), signed_in(cast.oda)
    form = {**FIGURES, "effective_from": f"{timezone.now() + timedelta(days=9):%Y-%m-%dT%H:%M}"}
    assert browser.post(address, form).status_code == 302
    taken = browser.post(address, {**form, "output_price": "21"}, headers={"accept-language": "de"})
    assert taken.status_code == 400
    assert f"{model.name} hat schon einen Preis ab " in taken.content.decode()


def test_a_price_of_one_organization_is_nobody_elses(cast: Cast, model: Model, signed_in: Browser) -> None:
    form = {**FIGURES, "organization": cast.organization.slug}
    browser = signed_in(cast.oda)
    assert browser.post(reverse("portal:operator_price", args=[model.id]), form).status_code == 302
    listed, own = (current_price(model.name, timezone.now(), whose) for whose in (None, cast.organization.id))
    assert listed
    assert own
    assert listed.input_nano != own.input_nano == 4 * 10**9
    unknown = browser.post(reverse("portal:operator_price", args=[model.id]), {**form, "organization": "nobody"})
    assert "no organization" in str(unknown.context["price_form"].errors["organization"])


def test_a_discount_is_given_once(cast: Cast, model: Model, signed_in: Browser) -> None:
    listed = current_price(model.name, timezone.now())
    form = {"organization": cast.organization.slug, "percent": "12.5", "reason": "volume", "key": str(uuid.uuid4())}
    browser = signed_in(cast.oda)
    for _ in range(2):
        assert browser.post(reverse("portal:operator_discount", args=[model.id]), form).status_code == 302
    own = current_price(model.name, timezone.now(), cast.organization.id)
    assert listed
    assert own
    assert own.input_nano == listed.input_nano * 7 // 8
    assert AuditEvent.objects.filter(action="price.discounted", actor=cast.oda).count() == 1
    assert b"Discount" in browser.get(reverse("portal:operator_model", args=[model.id])).content


def test_a_month_closes_only_with_a_reason_for_what_does_not_match(
    cast: Cast, model: Model, signed_in: Browser, calls: None
) -> None:
    browser, address = signed_in(cast.oda), reverse("portal:operator_period_close")
    period = f"{timezone.now().replace(day=1) - timedelta(days=1):%Y-%m}"
    answer = browser.post(address, {"period": period}, follow=True)
    assert b"2 calls" in answer.content
    assert not PeriodClose.objects.exists()
    browser.post(address, {"period": period, "waiver": "the journal burnt"})
    closed = PeriodClose.objects.get()
    assert cast.oda.email in closed.actor_name
    assert AuditEvent.objects.get(action="period.closed").reason == "the journal burnt"
    browser.post(address, {"period": period, "waiver": "again"})
    assert AuditEvent.objects.filter(action="period.closed").count() == 1
    page = browser.get(reverse("portal:operator_reconciliation"))
    assert b"the journal burnt" in page.content
    # What is closed is not offered to be closed once more.
    assert f"{period} is closed." in page.content.decode()
    assert page.context["period_form"]["period"].value() is None
    assert b"<summary>Close an older month</summary>" in page.content


def test_one_account_is_no_agreement_and_no_disagreement(cast: Cast, signed_in: Browser) -> None:
    account, price, now = make_account(credit_nano=10**9), make_price(), timezone.now()
    row = opening(account, price, gateway_id="gone", started_at=now)
    open_records([row])
    [whole] = make_calls(account, price, started_at=now)
    note_gateway_end("gone")
    told = [receipt(number, call, account, started_at=now) for number, call in enumerate((whole, row.request_id), 1)]
    apply_receipts(source="engine-1", receipts=told)
    page = signed_in(cast.oda).get(reverse("portal:operator_reconciliation")).content.decode()
    assert "<dt>Raw</dt><dd>100 %<small>strictly 50 %</small></dd>" in page
    assert f"<code>{row.request_id}</code>" in page
    assert page.count("One account") == 4, "two columns, the call, and what it means"


def test_a_mismatch_shows_both_accounts_the_difference_and_the_repair(cast: Cast, signed_in: Browser) -> None:
    """Ours says 1000 in (900 cached) and 100 out, the engine 1010 (900) and 98: at $0.40, $0.10 and $2.03 a million."""
    account, price, now = make_account(credit_nano=10**9), make_price(), timezone.now()
    [request_id] = make_calls(account, price, started_at=now)
    told = receipt(1, request_id, account, started_at=now, prompt_tokens=1010, completion_tokens=98)
    apply_receipts(source="engine-1", receipts=[told])
    browser = signed_in(cast.oda)
    [row] = browser.get(reverse("portal:operator_reconciliation")).context["mismatches"]
    found = row.comparison
    assert (found.record.counts[:3], found.receipt.counts[:3]) == ((1000, 900, 100), (1010, 900, 98))
    assert found.difference[:3] == (10, 0, -2)
    assert (found.record.cost_nano, found.receipt.cost_nano) == (333_000, 332_940)
    assert found.difference_nano == found.adjustments[0].cost_nano == -60
    assert found.corrected.counts == found.receipt.counts
    page = browser.get(reverse("portal:operator_call", args=[request_id])).content.decode()
    for text in ("1,010", "+10", "-2", "engine-1#1", "corrected by an entry of its own"):
        assert text in page
    api = browser.get(reverse("api:operator_compared_call", args=[request_id])).json()
    assert (api["difference"]["output_tokens"], api["repair"]) == (-2, "adjusted")
    assert api["cost_difference"] == api["corrections"][0]["cost"] == "-0.000000060"
    listed = browser.get(reverse("api:operator_reconciliation")).json()["mismatches"]
    assert [(each["request_id"], each["repair"]) for each in listed] == [(str(request_id), "adjusted")]


def test_what_reconciliation_wrote_itself_is_no_account_of_ours(cast: Cast, signed_in: Browser) -> None:
    account, price, now = make_account(credit_nano=10**9), make_price(), timezone.now()
    left = opening(account, price, gateway_id="gone", started_at=now)
    open_records([left])
    note_gateway_end("gone")
    unknown_tenant, unrecorded = uuid.uuid4(), uuid.uuid4()
    told = [
        receipt(1, left.request_id, account, started_at=now),
        receipt(2, unrecorded, account, started_at=now),
        receipt(3, unknown_tenant, tenant="nobody", started_at=now),
    ]
    apply_receipts(source="engine-1", receipts=told, grace=timedelta())
    found = {
        row.mismatch.request_id: (row.comparison.record, str(row.comparison.repair), row.mismatch.is_settled)
        for row in signed_in(cast.oda).get(reverse("portal:operator_reconciliation")).context["mismatches"]
    }
    assert found == {
        left.request_id: (None, "finished", True),
        unrecorded: (None, "recorded", True),
        unknown_tenant: (None, "", False),
    }
    page = signed_in(cast.oda).get(reverse("portal:operator_call", args=[unknown_tenant])).content.decode()
    assert "no organization of ours" in page
    assert signed_in(cast.oda).get(reverse("portal:operator_call", args=[uuid.uuid4()])).status_code == 404


def test_a_call_without_a_receipt_shows_ours_alone(cast: Cast, signed_in: Browser) -> None:
    account, price, now = make_account(credit_nano=10**9), make_price(), timezone.now()
    [request_id] = make_calls(account, price, started_at=now)
    [row] = signed_in(cast.oda).get(reverse("portal:operator_reconciliation")).context["mismatches"]
    assert (row.mismatch.request_id, row.comparison.receipt, row.comparison.difference) == (request_id, None, None)
    assert row.comparison.record.cost_nano == 333_000
    assert "No receipt has come" in row.explanation


def test_mismatches_stand_on_pages_and_every_one_is_on_one(
    cast: Cast, signed_in: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, price, now = make_account(credit_nano=10**9), make_price(), timezone.now()
    made = set(make_calls(account, price, 5, started_at=now))
    monkeypatch.setattr(reconciliation_views, "MISMATCHES_SHOWN", 2)
    browser, address = signed_in(cast.oda), reverse("portal:operator_reconciliation")
    pages = [browser.get(address, {"page": number}) for number in (1, 2, 3)]
    shown = [[row.mismatch.request_id for row in page.context["mismatches"]] for page in pages]
    assert [len(ids) for ids in shown] == [2, 2, 1]
    assert {each for ids in shown for each in ids} == made
    assert "?page=2" in pages[0].content.decode()


def test_the_running_month_stays_open(cast: Cast, signed_in: Browser) -> None:
    period = f"{timezone.now():%Y-%m}"
    signed_in(cast.oda).post(reverse("portal:operator_period_close"), {"period": period, "waiver": "x"})
    assert not PeriodClose.objects.exists()


def test_rates_come_as_csv(cast: Cast, model: Model, signed_in: Browser, calls: None) -> None:
    period = f"{timezone.now().replace(day=1) - timedelta(days=1):%Y-%m}"
    browser, address = signed_in(cast.oda), reverse("portal:operator_reconciliation_csv")
    lines = browser.get(address, {"period": period}).content.decode().splitlines()
    assert lines[0].startswith("day,organization_id,calls,equal")
    assert lines[1].split(",")[2:4] == ["2", "0"]
    assert browser.get(address, {"period": "soon"}).status_code == 400


def test_an_invoice_run_says_that_its_month_is_not_closed(
    cast: Cast, model: Model, signed_in: Browser, calls: None, settings: Any
) -> None:
    browser = signed_in(cast.oda)
    period = f"{timezone.now().replace(day=1) - timedelta(days=1):%Y-%m}"
    address = reverse("portal:operator_invoices") + f"?period={period}"
    assert b"A run issues its invoices all the same" in browser.get(address).content
    settings.INVOICE_REQUIRE_CLOSED_PERIOD = True
    assert b"issues none until it is" in browser.get(address).content
    settings.INVOICE_REQUIRE_CLOSED_PERIOD = False
    run_month(period)
    page = reverse("portal:operator_invoice", args=[Invoice.objects.get().id])
    assert b"issued before" in browser.get(page).content
    browser.post(reverse("portal:operator_period_close"), {"period": period, "waiver": "no journal"})
    assert b"closed in reconciliation</a>" not in browser.get(address).content
    # Closed afterwards, so the invoice was still issued before.
    assert b"issued before" in browser.get(page).content


def test_what_is_kept_how_long_and_what_would_go_is_shown(
    cast: Cast, model: Model, signed_in: Browser, calls: None, settings: Any
) -> None:
    browser, address = signed_in(cast.oda), reverse("portal:operator_retention")
    page = browser.get(address).content
    assert b"No retention is set" in page
    assert b"Prompts and answers of calls" in page
    settings.USAGE_RETENTION_MONTHS = 1
    assert b"USAGE_RETENTION_MONTHS" in browser.get(address).content
    assert b"1 months after their month" in browser.get(address).content


def tier_fields(*tiers: tuple[str, str]) -> dict[str, str]:
    fields = {"tier-TOTAL_FORMS": str(len(tiers)), "tier-INITIAL_FORMS": "0"}
    for number, (tokens, percent) in enumerate(tiers):
        fields |= {f"tier-{number}-from_tokens": tokens, f"tier-{number}-percent": percent}
    return fields


def test_tiers_are_previewed_on_last_month_before_they_are_saved(
    cast: Cast, model: Model, signed_in: Browser, calls: None
) -> None:
    account = BillingAccount.objects.get(organization=cast.organization)
    price = Price.objects.get(model=model.name)
    first = (timezone.now().replace(day=1, hour=12) - timedelta(days=1)).replace(day=1)
    earlier = (first - timedelta(days=1)).replace(day=10)
    row = opening(account, price, started_at=earlier)
    open_records([row])
    finish_records([ending(row.request_id, finished_at=earlier)])
    rollups.take_pending(now=timezone.now())
    browser, address = signed_in(cast.oda), reverse("portal:operator_tiers")
    # 1,100 tokens in the month before: the lower tier, a tenth off the 666,000 nano of last month's two calls.
    fields = tier_fields(("1,000", "10"), ("2 000", "50"), ("", ""))
    answer = browser.post(address, {**fields, "preview": "1"})
    assert answer.status_code == 200
    preview = answer.context["tiers_preview"]
    assert (preview.billed_nano, preview.proposed_nano) == (666_000, 599_400)
    assert [(row.tokens, row.basis_points, tenant) for row, tenant in preview.rows] == [(1100, 1000, cast.organization)]
    assert volume_tiers() == []
    for _ in range(2):
        assert browser.post(address, fields).status_code == 302
    assert [(tier.from_tokens, tier.basis_points) for tier in volume_tiers()] == [(1000, 1000), (2000, 5000)]
    assert AuditEvent.objects.filter(action="volume_tiers.changed", actor=cast.oda).count() == 1
    assert b"1,000" in browser.get(reverse("portal:operator_volume")).content
    assert browser.post(address, tier_fields(("", ""))).status_code == 302
    assert volume_tiers() == []


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([("1000", "20"), ("2000", "10")], b"must be higher than below"),
        ([("1000", "")], b"needs both"),
        ([("many", "5")], b"whole number of tokens"),
        ([("1000", "101")], b"less than or equal to 100"),
    ],
)
def test_odd_tiers_are_refused_with_the_reason(
    cast: Cast, model: Model, signed_in: Browser, tiers: list[tuple[str, str]], message: bytes
) -> None:
    for extra in ({}, {"preview": "1"}):
        answer = signed_in(cast.oda).post(reverse("portal:operator_tiers"), tier_fields(*tiers) | extra)
        assert answer.status_code == 400
        assert message in answer.content
    assert volume_tiers() == []


def test_a_discount_on_all_models_is_previewed_and_leaves_agreed_prices_alone(
    cast: Cast, model: Model, signed_in: Browser, calls: None
) -> None:
    browser, address = signed_in(cast.oda), reverse("portal:operator_any_discount")
    form = {"organization": cast.organization.slug, "percent": "50", "reason": "start", "key": str(uuid.uuid4())}
    change, tenant = browser.post(address, {**form, "preview": "1"}).context["discount_preview"]
    assert (change.requests, change.billed_nano, change.proposed_nano, tenant) == (
        2, 666_000, 333_000, cast.organization
    )  # fmt: skip
    listed = current_price(model.name, timezone.now())
    assert current_price(model.name, timezone.now(), cast.organization.id) == listed
    for _ in range(2):
        assert browser.post(address, form).status_code == 302
    own = current_price(model.name, timezone.now(), cast.organization.id)
    assert own
    assert listed
    assert own.output_nano * 2 == listed.output_nano
    event = AuditEvent.objects.get(action="price.discounted")
    assert (event.organization_id, event.reason) == (cast.organization.id, "start")
    assert b"start" in browser.get(reverse("portal:operator_volume")).content
    assert browser.post(address, {**form, "organization": "nobody"}).status_code == 400


def test_a_discount_is_ended_early(cast: Cast, model: Model, signed_in: Browser) -> None:
    browser = signed_in(cast.oda)
    form = {"organization": cast.organization.slug, "percent": "50", "reason": "start", "key": str(uuid.uuid4())}
    browser.post(reverse("portal:operator_any_discount"), form)
    [discount] = discounts()
    address = reverse("portal:operator_discount_end", args=[discount.id])
    assert address.encode() in browser.get(reverse("portal:operator_volume")).content
    assert b"Say why" in browser.post(address, {}, follow=True).content
    for _ in range(2):
        assert b"The discount has ended" in browser.post(address, {"reason": "they left"}, follow=True).content
    listed, own = (current_price(model.name, timezone.now(), whose) for whose in (None, cast.organization.id))
    assert own == listed
    event = AuditEvent.objects.get(action="price.discount_ended")
    assert (event.organization_id, event.reason) == (cast.organization.id, "they left")
    page = browser.get(reverse("portal:operator_volume")).content
    assert b"Ended early: they left" in page
    assert address.encode() not in page


def test_agreed_prices_and_what_they_settled_stay_out_of_the_preview_of_a_discount(
    cast: Cast, model: Model, signed_in: Browser
) -> None:
    account = BillingAccount.objects.get(organization=cast.organization)
    first = (timezone.now().replace(day=1, hour=12) - timedelta(days=1)).replace(day=1)
    agreed = make_price(model.name, at=first - timedelta(days=40), organization_id=cast.organization.id)
    row = opening(account, agreed, started_at=first)
    open_records([row])
    finish_records([ending(row.request_id, finished_at=first)])
    browser = signed_in(cast.oda)
    form = {"organization": cast.organization.slug, "percent": "50", "reason": "x", "key": str(uuid.uuid4())}
    answer = browser.post(reverse("portal:operator_any_discount"), {**form, "preview": "1"})
    assert answer.context["discount_preview"][0].requests == 0
    assert b"Agreed prices" in answer.content


def test_a_list_price_is_set_in_each_currency_that_is_sold_in(
    cast: Cast, model: Model, signed_in: Browser, settings: Any
) -> None:
    settings.BILLING_CURRENCIES = ["USD", "EUR"]
    browser, address = signed_in(cast.oda), reverse("portal:operator_price", args=[model.id])
    assert browser.post(address, {**FIGURES, "currency": "EUR"}).status_code == 302
    euros = current_price(model.name, timezone.now(), currency="EUR")
    assert euros
    assert euros.input_nano == 4 * 10**9
    assert current_price(model.name, timezone.now()) != euros
    assert "€" in browser.get(reverse("portal:operator_model", args=[model.id])).content.decode()
    assert browser.post(address, {**FIGURES, "currency": "GBP"}).status_code == 400


def test_a_new_organization_chooses_the_currency_it_pays_in(cast: Cast, signed_in: Browser, settings: Any) -> None:
    browser, address = signed_in(cast.ada), reverse("portal:organization_new")
    assert b'name="currency"' not in browser.get(address).content
    settings.BILLING_CURRENCIES = ["USD", "EUR"]
    assert b'name="currency"' in browser.get(address).content
    assert browser.post(address, {"name": "In euros", "currency": "EUR"}).status_code == 302
    assert browser.post(address, {"name": "As usual"}).status_code == 302
    by_name = dict(BillingAccount.objects.values_list("organization__name", "currency"))
    assert (by_name["In euros"], by_name["As usual"]) == ("EUR", "USD")
    assert browser.post(address, {"name": "In pounds", "currency": "GBP"}).status_code == 400


def test_a_customer_who_failed_in_a_run_is_shown_with_the_reason_and_tried_again(
    cast: Cast, model: Model, signed_in: Browser, calls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = signed_in(cast.oda)
    period = f"{timezone.now().replace(day=1) - timedelta(days=1):%Y-%m}"
    run = InvoiceRun.objects.create(period=period, is_preview=False, started_by=cast.oda)
    address = reverse("portal:operator_run", args=[run.id])
    with monkeypatch.context() as broken:

        def no_rate(*_: Any, **__: Any) -> None:
            raise InvalidTaxRate("country", "There is no tax rate of XX.")

        broken.setattr(runs, "finalize_invoice", no_rate)
        execute_run(run.id)
        page = browser.get(address, {"outcome": "failed"})
        [row] = page.context["page"].rows
        assert (row.organization, row.reason) == (cast.organization, "There is no tax rate of XX.")
        assert row.invoice.status == "draft"
        retry = reverse("portal:operator_invoice_retry", args=[run.id, cast.organization.slug])
        assert "failed again" in browser.post(retry, follow=True).content.decode()
    page = browser.post(retry, follow=True)
    assert "went through" in page.content.decode()
    assert page.context["page"].rows == []
    run.refresh_from_db()
    assert (run.outcome["finalized"], run.outcome["failed_count"], run.done) == (1, 0, run.account_total)
    assert Invoice.objects.get(organization=cast.organization).number
    event = AuditEvent.objects.filter(action="invoice_run.retried").latest("id")
    assert (event.organization, event.actor) == (cast.organization, cast.oda)
    # Once more changes nothing.
    browser.post(retry)
    run.refresh_from_db()
    assert run.outcome["finalized"] == 1


def test_a_run_says_what_became_of_each_customer(cast: Cast, model: Model, signed_in: Browser, calls: None) -> None:
    """Issued with number and sum, nothing to bill, month not over: one row each, by outcome, by name, by page."""
    browser, now = signed_in(cast.oda), timezone.now()
    # Where a month is over first: on the first of a month, last month goes on west of UTC.
    idle = make_account(time_zone="Pacific/Kiritimati")
    run = InvoiceRun.objects.create(
        period=f"{now.replace(day=1) - timedelta(days=1):%Y-%m}", is_preview=False, started_by=cast.oda
    )
    execute_run(run.id)
    page = browser.get(reverse("portal:operator_run", args=[run.id]))
    rows = {row.organization_id: row for row in page.context["page"].rows}
    assert len(rows) == BillingAccount.objects.count() == run_of(run).done
    issued = Invoice.objects.get(organization=cast.organization)
    assert (rows[cast.organization.id].outcome, rows[cast.organization.id].invoice) == ("finalized", issued)
    assert issued.number in page.content.decode()
    assert (rows[idle.organization_id].outcome, rows[idle.organization_id].invoice) == ("empty", None)
    assert "No call, fee or correction is left to bill." in page.content.decode()
    counts = {each.outcome: each.count for each in page.context["outcomes"]}
    assert counts == {"finalized": 1, "empty": len(rows) - 1, "failed": 0}

    api = browser.get(reverse("api:operator_invoice_run_outcomes", args=[run.id]), {"outcome": "finalized"}).json()
    assert [(row["organization"], row["number"], row["reason"]) for row in api["data"]] == [
        (cast.organization.slug, issued.number, "")
    ]
    first = browser.get(reverse("api:operator_invoice_run_outcomes", args=[run.id]), {"limit": 1}).json()
    second = browser.get(
        reverse("api:operator_invoice_run_outcomes", args=[run.id]), {"limit": 1, "after": first["next"]}
    ).json()
    assert [first["data"][0]["organization_id"], second["data"][0]["organization_id"]] == sorted(rows)[:2]
    named = browser.get(reverse("portal:operator_run", args=[run.id]), {"q": cast.organization.name})
    assert [row.organization for row in named.context["page"].rows] == [cast.organization]
    assert browser.get(reverse("api:operator_invoice_run_outcomes", args=[run.id]), {"outcome": "x"}).status_code == 400


def test_a_month_that_is_not_over_somewhere_is_an_outcome(cast: Cast, signed_in: Browser) -> None:
    run = InvoiceRun.objects.create(period=f"{timezone.now():%Y-%m}", is_preview=False, started_by=cast.oda)
    execute_run(run.id)
    page = signed_in(cast.oda).get(reverse("portal:operator_run", args=[run.id]), {"outcome": "still_open"})
    assert {row.outcome for row in page.context["page"].rows} == {"still_open"}
    assert "Month not over there" in page.content.decode()
    assert "by the organization's time zone (UTC)" in page.content.decode().replace("&#x27;", "'")


def test_a_run_that_goes_on_where_it_was_killed_keeps_one_outcome_of_each(cast: Cast, calls: None) -> None:
    run = InvoiceRun.objects.create(
        period=f"{timezone.now().replace(day=1) - timedelta(days=1):%Y-%m}", is_preview=False, started_by=cast.oda
    )
    execute_run(run.id)
    # As if the worker had died before it wrote where it was.
    InvoiceRun.objects.filter(id=run.id).update(position=0, outcome={}, state="running")
    execute_run(run.id)
    outcomes = dict(RunOutcome.objects.filter(run=run).values_list("organization_id", "outcome"))
    assert len(outcomes) == BillingAccount.objects.count()
    assert outcomes[cast.organization.id] == "already_final"
    assert run_of(run).done == len(outcomes)


def run_of(run: InvoiceRun) -> InvoiceRun:
    return InvoiceRun.objects.get(id=run.id)
