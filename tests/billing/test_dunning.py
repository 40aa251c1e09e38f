"""Nobody is suspended unwarned; who pays is released; the job may sleep, repeat and race."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.core import mail
from hypothesis import given
from hypothesis import strategies as st

from billing.dunning import policy, services
from billing.dunning.models import DunningStep
from billing.invoices.models import Invoice
from billing.invoices.services import draft_invoice, finalize_invoice, void_invoice, write_off
from billing.payments import services as payments
from portal.audit.models import AuditEvent
from portal.organizations.services import set_suspended
from tests.factories.billing import USD, make_account, make_calls, make_price
from tests.fakes.stripe.payments import DECLINED

pytestmark = pytest.mark.django_db

ISSUED = datetime(2026, 6, 1, 7, tzinfo=UTC)
DUE = ISSUED + timedelta(days=30)
DAY = timedelta(days=1)


@pytest.fixture
def invoice(fake, gateway):
    account = make_account(credit_limit_nano=1000 * USD)
    make_calls(account, make_price(), prompt_tokens=250_000_000, cached_tokens=0, completion_tokens=0)
    draft = draft_invoice(organization_id=account.organization_id, period="2026-05", now=ISSUED)
    made = finalize_invoice(draft, now=ISSUED)
    payments.push_invoice(made.id, gateway=gateway)
    return Invoice.objects.get(id=made.id)


def run(now, *, until=None, every=timedelta(hours=6)):
    """The job from one moment to another, and its letters."""
    moment = now
    while moment <= (until or now):
        services.run_dunning(now=moment)
        for step_id, _ in services.steps_to_work():
            services.work_step(step_id, tries_card=False, now=moment)
        moment += every


def steps(invoice):
    return {step.name: step.done_at for step in DunningStep.objects.filter(invoice=invoice)}


def test_the_whole_way_to_suspension_with_a_letter_at_each_step(invoice):
    run(ISSUED, until=DUE + 30 * DAY)
    done = steps(invoice)
    assert list(done) == ["upcoming", "overdue", "reminder", "final_warning", "suspension"]
    assert done["suspension"] - done["final_warning"] >= 7 * DAY
    assert [message.subject.split(":")[0] for message in mail.outbox] == [
        "Invoice INV-000001 is due on 1 July 2026",
        "Invoice INV-000001 is overdue",
        "Reminder",
        "Final warning",
        "Suspended",
    ]
    warning = mail.outbox[3]
    assert "suspended on 22 July 2026" in warning.body
    assert "https://invoice.example/" in warning.body
    assert [attachment[0] for attachment in warning.attachments] == ["INV-000001.pdf"]
    organization = invoice.organization
    organization.refresh_from_db()
    assert organization.is_suspended
    event = AuditEvent.objects.get(action="organization.suspended")
    assert (event.actor_label, event.reason) == ("system", "Invoice INV-000001 is unpaid.")
    assert Invoice.objects.get(id=invoice.id).status == "past_due"


def test_a_job_that_slept_for_months_still_warns_before_it_suspends(invoice):
    late = DUE + 100 * DAY
    run(late, until=late + 30 * DAY)
    done = steps(invoice)
    assert "upcoming" not in done
    assert done["overdue"] >= late
    assert done["suspension"] >= done["final_warning"] + 7 * DAY


def test_payment_stops_the_letters_and_lifts_the_suspension(invoice, fake, tell):
    run(ISSUED, until=DUE + 25 * DAY)
    organization = invoice.organization
    organization.refresh_from_db()
    assert organization.is_suspended
    fake.store.pay(fake.store.all("invoice")[0]["id"])
    assert tell(fake.events("invoice.paid")[0]) == "applied"
    organization.refresh_from_db()
    assert not organization.is_suspended
    sent = len(mail.outbox)
    run(DUE + 25 * DAY, until=DUE + 40 * DAY)
    assert len(mail.outbox) == sent


def test_a_suspension_by_a_person_is_not_lifted_by_a_payment(invoice, fake, tell):
    organization = invoice.organization
    set_suspended(organization=organization, is_suspended=True, actor=None, reason="abuse")
    run(ISSUED, until=DUE + 25 * DAY)
    fake.store.pay(fake.store.all("invoice")[0]["id"])
    tell(fake.events("invoice.paid")[0])
    organization.refresh_from_db()
    assert organization.is_suspended


@pytest.mark.parametrize("end", [void_invoice, partial(write_off, actor_id=None)])
def test_void_and_written_off_invoices_are_left_alone(invoice, end):
    end(Invoice.objects.get(id=invoice.id), reason="test")
    run(ISSUED, until=DUE + 30 * DAY, every=DAY)
    assert steps(invoice) == {}


def test_nothing_due_is_nothing_to_remind_of(fake, gateway):
    account = make_account(credit_nano=1000 * USD)
    make_calls(account, make_price())
    draft = draft_invoice(organization_id=account.organization_id, period="2026-05", now=ISSUED)
    finalize_invoice(draft, now=ISSUED)
    run(ISSUED, until=DUE + 30 * DAY, every=DAY)
    assert not DunningStep.objects.exists()


@pytest.mark.parametrize(("behaviour", "note"), [("pm_card_visa", "charged"), (DECLINED, "declined")])
def test_the_kept_card_is_tried_once_a_step(invoice, fake, gateway, tell, behaviour, note, configured):
    account = invoice.organization.billing_account
    account.refresh_from_db()
    account.stripe_payment_method_id = fake.store.attach(account.stripe_customer_id, behaviour)
    account.save()
    services.run_dunning(now=DUE + 2 * DAY)
    [(step_id, tries_card)] = services.steps_to_work()
    assert tries_card
    for _ in range(2):
        services.work_step(step_id, tries_card=tries_card, now=DUE + 2 * DAY)
    assert note in DunningStep.objects.get(id=step_id).payment_note
    assert len(mail.outbox) == 1
    if behaviour == DECLINED:
        assert "was declined" in mail.outbox[0].body
    else:
        assert tell(fake.events("invoice.paid")[0]) == "applied"


@pytest.fixture
def configured(fake, settings):
    settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE = fake.secret_key, fake.url
    settings.STRIPE_WEBHOOK_SECRETS = [fake.webhook_secret]


@given(st.lists(st.integers(0, 40 * 24), min_size=1, max_size=60))
def test_whenever_the_job_runs_the_order_and_the_warning_hold(hours):
    done = {}
    moment = DUE - 5 * DAY
    for pause in hours:
        moment += timedelta(hours=pause)
        step = policy.next_step(DUE, done, moment)
        if step:
            promised = policy.suspension_at(DUE, done)
            done[step.name] = moment
            if step.suspends:
                assert moment >= promised
                assert moment - done["final_warning"] >= 7 * DAY
                assert {"overdue", "reminder", "final_warning"} <= done.keys()
    assert list(done) == [step.name for step in policy.STEPS if step.name in done]
