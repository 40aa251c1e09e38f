"""A month's invoice run: who started it, its progress, and what it did with each account."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.invoices.runs import Outcome
from portal.organizations.models import Organization


class RunState(models.TextChoices):
    QUEUED = "queued", _("Queued")
    RUNNING = "running", _("Running")
    FINISHED = "finished", _("Finished")
    FAILED = "failed", _("Failed")


class InvoiceRun(models.Model):
    """`outcome` holds what the run reported, by name; `error` why it failed."""

    period = models.CharField(max_length=7)
    is_preview = models.BooleanField()
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.QUEUED)
    started_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    outcome = models.JSONField(default=dict, blank=True)
    error = models.CharField(max_length=500, blank=True)
    # How many accounts there were at the start, and the organization behind which to go on.
    account_total = models.PositiveIntegerField(default=0, db_default=0)
    position = models.BigIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "portal"

    def __str__(self) -> str:
        return f"{'Preview' if self.is_preview else 'Run'} of {self.period}"

    @property
    def done(self) -> int:
        """Accounts that the run has passed."""
        names = ("drafted", "finalized", "already_final", "empty", "still_open", "waiting", "failed_count")
        return sum(self.outcome.get(name, 0) for name in names)

    @property
    def percent(self) -> int:
        return min(100, 100 * self.done // self.account_total) if self.account_total else 0

    @property
    def is_over(self) -> bool:
        return self.state in (RunState.FINISHED, RunState.FAILED)


class RunOutcome(models.Model):
    """What a run did with one account, or `reason` why it failed. Without an invoice where there was nothing to bill or
    the month was not over."""

    run = models.ForeignKey(InvoiceRun, on_delete=models.CASCADE, related_name="outcomes")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    outcome = models.CharField(max_length=13, choices=[(each.value, each.value) for each in Outcome])
    invoice = models.ForeignKey("billing.Invoice", on_delete=models.SET_NULL, null=True, related_name="+")
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        app_label = "portal"
        constraints = [
            models.UniqueConstraint(fields=["run", "organization"], name="run_outcome_once"),
        ]
        indexes = [models.Index(fields=["run", "outcome", "organization"], name="run_outcome_by_outcome")]

    def __str__(self) -> str:
        return f"{self.run}: {self.organization} {self.outcome}"
