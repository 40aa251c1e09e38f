"""Invoice runs and closed months, started by an operator."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.errors import BillingError
from billing.invoices.runs import AccountOutcome, Outcome, RunSummary, account_count, is_complete, run_month
from billing.invoices.runs import retry_account as retry_account_of_month
from billing.reconciliation import periods
from billing.reconciliation.models import PeriodClose
from portal.audit.services import record_event
from portal.errors import NotPossible
from portal.operator.models import InvoiceRun, RunOutcome, RunState
from portal.organizations.models import Organization
from portal.users.models import User

# Well below the time after which the broker gives a task to another worker.
SLICE_S = 60.0


@transaction.atomic
def start_run(*, period: str, is_preview: bool, actor: User) -> InvoiceRun:
    """Queues the run. A second one of the same month is harmless: an organization has one invoice a month."""
    run = InvoiceRun.objects.create(period=period, is_preview=is_preview, started_by=actor)
    record_event(
        organization_id=None,
        actor=actor,
        action="invoice_run.started",
        subject=run,
        label=period,
        after={"period": period, "preview": is_preview},
    )
    transaction.on_commit(partial(_enqueue, run.id))
    return run


def _enqueue(run_id: int) -> None:
    from portal.tasks import run_invoices

    run_invoices.delay(run_id)


def execute_run(run_id: int) -> bool:
    """One slice of the run; True when more is to be done, which the caller enqueues.

    What is done is kept every few accounts, so that a killed worker's run goes on where it was. A repeat of one that is
    over does nothing.
    """
    claimed = InvoiceRun.objects.filter(id=run_id).exclude(state__in=[RunState.FINISHED, RunState.FAILED])
    if not claimed.update(state=RunState.RUNNING):
        return False
    run = InvoiceRun.objects.get(id=run_id)
    if not run.account_total:
        run.account_total = account_count()

    @transaction.atomic
    def keep(summary: RunSummary, position: int, outcomes: list[AccountOutcome]) -> None:
        run.outcome, run.position = asdict(summary), position
        run.save(update_fields=["outcome", "position", "account_total"])
        _keep_outcomes(run, outcomes)

    try:
        run_month(
            run.period,
            preview=run.is_preview,
            summary=RunSummary(**run.outcome) if run.outcome else None,
            after=run.position,
            report=keep,
            stop_after_s=SLICE_S,
        )
        if not is_complete(run.position):
            return True
        run.state = RunState.FINISHED
    except BillingError as error:
        run.error = str(error)[:500]
        run.state = RunState.FAILED
    run.finished_at = timezone.now()
    run.save(update_fields=["state", "error", "finished_at"])
    return False


def _keep_outcomes(run: InvoiceRun, outcomes: list[AccountOutcome]) -> None:
    """An account that a killed worker passed already has its latest outcome."""
    RunOutcome.objects.bulk_create(
        [
            RunOutcome(
                run=run,
                organization_id=each.organization_id,
                outcome=each.outcome,
                invoice_id=each.invoice_id,
                reason=each.reason[:500],
            )
            for each in outcomes
        ],
        update_conflicts=True,
        unique_fields=["run", "organization"],
        update_fields=["outcome", "invoice", "reason"],
    )


@transaction.atomic
def retry_account(*, run: InvoiceRun, organization: Organization, actor: User) -> RunOutcome:
    """Once more for a customer who failed in a run that is over; what became of it. A repeat, and one who did not fail,
    change nothing."""
    run = InvoiceRun.objects.select_for_update().get(id=run.id)
    if not run.is_over:
        raise NotPossible(_("The run is not over; it can be tried again then."))
    found = RunOutcome.objects.filter(run=run, organization=organization).first()
    if found is None:
        raise NotPossible(_("The run did not come to this organization; run the month again."))
    if found.outcome != Outcome.FAILED:
        return found
    summary = RunSummary(**run.outcome)
    tried = retry_account_of_month(run.period, organization.id, run.is_preview, summary=summary)
    run.outcome = asdict(summary)
    run.save(update_fields=["outcome"])
    _keep_outcomes(run, [tried])
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="invoice_run.retried",
        subject=run,
        label=run.period,
        after={"period": run.period, "preview": run.is_preview},
    )
    return RunOutcome.objects.get(id=found.id)


@transaction.atomic
def close_period(*, period: str, waiver: str, actor: User) -> PeriodClose:
    """Close a month of reconciliation and audit it in one; a month that was closed before is left as it is.

    Raises InvalidPeriod, PeriodOpen or PeriodUnmatched.
    """
    now = timezone.now()
    name = f"{actor.name} <{actor.email}>" if actor.name else actor.email
    closed = periods.close_period(period=period, actor_id=actor.id, actor_name=name, waiver=waiver, now=now)
    if closed.closed_at == now:
        record_event(
            organization_id=None,
            actor=actor,
            action="period.closed",
            subject=closed,
            after={"calls": closed.calls, "equal": closed.equal, "unmatched": closed.unmatched},
            reason=closed.waiver,
        )
    return closed
