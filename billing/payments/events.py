"""Webhooks: kept as they come, then worked one by one. An event says that something happened; what is true is asked."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from billing.credits import refunds, topups
from billing.errors import BillingError
from billing.payments.booking import Booked, book_invoice
from billing.payments.configuration import configured_gateway
from billing.payments.gateway import Fact, InvoiceFact, PaymentGateway, ProviderEvent, TopUpFact
from billing.payments.models import EventOutcome, PaymentEvent

logger = logging.getLogger(__name__)

# Enqueued again by beat when no worker has come so long: a broker that was away.
_STALE = timedelta(minutes=2)
_ATTEMPTS = 8
OUTCOMES = tuple(EventOutcome.values)
OPEN_OUTCOMES = (EventOutcome.RECEIVED, EventOutcome.FAILED, EventOutcome.UNMATCHED)


def receive_event(body: bytes, signature: str, *, gateway: PaymentGateway | None = None) -> PaymentEvent:
    """Verify a webhook's raw body, keep it, and enqueue the work for after the commit. A repeat keeps nothing more.

    Raises EventRefused when it is not the provider's.
    """
    gateway = gateway or configured_gateway()
    event = gateway.read_event(body, signature)
    with transaction.atomic():
        kept = _keep(event, is_worked=gateway.subject_of(event.type, event.payload) is not None)
        if kept.outcome == EventOutcome.RECEIVED:
            transaction.on_commit(partial(_enqueue, kept.id), robust=True)
    return kept


def _keep(event: ProviderEvent, *, is_worked: bool) -> PaymentEvent:
    row = PaymentEvent(
        provider=event.provider,
        event_id=event.event_id,
        type=event.type,
        payload=event.payload,
        outcome=EventOutcome.RECEIVED if is_worked else EventOutcome.IGNORED,
    )
    PaymentEvent.objects.bulk_create([row], ignore_conflicts=True)
    return PaymentEvent.objects.get(provider=event.provider, event_id=event.event_id)


def work_event(event_id: int, *, gateway: PaymentGateway | None = None, now: datetime | None = None) -> EventOutcome:
    """Ask how the event's subject stands now and book it; outcome and effect are one transaction.

    An event that is done stays done, however often and in whatever order events come. A failure is counted on the event
    and raised; the same event may then be worked again.
    """
    gateway = gateway or configured_gateway()
    event = PaymentEvent.objects.get(id=event_id)
    if event.outcome not in OPEN_OUTCOMES:
        return EventOutcome(event.outcome)
    try:
        subject = gateway.subject_of(event.type, event.payload)
        fact = gateway.look_up(subject) if subject else None
        return _apply(event_id, fact, now or timezone.now())
    except Exception as error:
        # The edge of one event: its failure is kept for the operator, and the task retries.
        PaymentEvent.objects.filter(id=event_id, outcome__in=OPEN_OUTCOMES).update(
            outcome=EventOutcome.FAILED, note=str(error)[:300], attempts=F("attempts") + 1, worked_at=timezone.now()
        )
        logger.warning("payment_event_failed event_id=%s error=%s", event.event_id, error)
        raise


@transaction.atomic
def _apply(event_id: int, fact: Fact | None, now: datetime) -> EventOutcome:
    event = PaymentEvent.objects.select_for_update().get(id=event_id)
    if event.outcome not in OPEN_OUTCOMES:
        return EventOutcome(event.outcome)
    booked = _book(event.provider, fact, now) if fact else Booked.unmatched("the provider does not know it any more")
    event.outcome, event.note = booked.outcome, booked.note[:300]
    event.worked_at, event.attempts = now, event.attempts + 1
    event.save(update_fields=["outcome", "note", "worked_at", "attempts"])
    if booked.outcome == EventOutcome.UNMATCHED:
        logger.error("payment_unmatched event_id=%s note=%s", event.event_id, booked.note)
    return booked.outcome


def _book(provider: str, fact: Fact, now: datetime) -> Booked:
    if isinstance(fact, InvoiceFact):
        return book_invoice(provider, fact, now)
    try:
        if isinstance(fact, TopUpFact):
            changed = topups.settle(provider, fact, now=now)
        else:
            changed = refunds.settle(fact, now=now)
    except BillingError as error:
        return Booked.unmatched(str(error))
    if changed is None:
        return Booked(EventOutcome.IGNORED, "not one of ours, or nothing to do yet")
    return Booked(EventOutcome.APPLIED if changed else EventOutcome.REPEATED)


def events_to_work(*, now: datetime) -> list[int]:
    """Those that no worker came for, and failed ones that are worth another try."""
    stale = PaymentEvent.objects.filter(received_at__lt=now - _STALE, attempts__lt=_ATTEMPTS)
    waiting = stale.filter(outcome__in=[EventOutcome.RECEIVED, EventOutcome.FAILED])
    return list(waiting.order_by("id").values_list("id", flat=True)[:500])


def replay_event(event_id: int) -> None:
    """Have an open event worked again, by a person. One that is done is left alone."""
    PaymentEvent.objects.filter(id=event_id, outcome__in=OPEN_OUTCOMES).update(attempts=0)
    _enqueue(event_id)


def recent_events(*, outcome: str = "") -> QuerySet[PaymentEvent]:
    """Newest first; for the operator."""
    events = PaymentEvent.objects.order_by("-id")
    return events.filter(outcome=outcome) if outcome else events


def open_event_count() -> int:
    """How many a person should look at."""
    return PaymentEvent.objects.filter(outcome__in=[EventOutcome.FAILED, EventOutcome.UNMATCHED]).count()


def _enqueue(event_id: int) -> None:
    from billing.tasks import work_event as task

    task.delay(event_id)
