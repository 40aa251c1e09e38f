"""Files that people asked for, made in the background."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class ExportKind(models.TextChoices):
    USAGE = "usage", "Requests"
    FOCUS = "focus", "FOCUS cost and usage"
    SHOWBACK = "showback", "Showback"
    CHARGEBACK = "chargeback", "Chargeback"


class ExportFormat(models.TextChoices):
    CSV = "csv", "CSV"
    PARQUET = "parquet", "Parquet"


class ExportState(models.TextChoices):
    QUEUED = "queued", "Waiting"
    RUNNING = "running", "Running"
    FINISHED = "finished", "Ready"
    FAILED = "failed", "Failed"


class Export(models.Model):
    """One file of one organization. `group_by` is for showback and chargeback; the filters narrow requests only."""

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="exports")
    kind = models.CharField(max_length=12, choices=ExportKind)
    format = models.CharField(max_length=8, choices=ExportFormat)
    period = models.CharField(max_length=7, help_text="YYYY-MM in the billing zone.")
    group_by = models.CharField(max_length=12, blank=True)
    project_id = models.BigIntegerField(null=True, blank=True)
    api_key_id = models.BigIntegerField(null=True, blank=True)
    model = models.CharField(max_length=200, blank=True)
    end_user = models.CharField(max_length=256, blank=True)
    state = models.CharField(max_length=10, choices=ExportState, default=ExportState.QUEUED)
    row_count = models.BigIntegerField(default=0)
    # Known before the first row is written; progress is row_count of it.
    row_total = models.BigIntegerField(null=True, blank=True)
    size_bytes = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True)
    error = models.CharField(max_length=300, blank=True)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)
    # The file is removed then; the row stays.
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "billing_export"
        constraints = [
            models.CheckConstraint(name="billing_export_state", condition=Q(state__in=ExportState.values)),
            models.CheckConstraint(name="billing_export_kind", condition=Q(kind__in=ExportKind.values)),
        ]
        indexes = [models.Index(F("organization"), F("id").desc(), name="billing_export_by_org")]

    def __str__(self) -> str:
        return f"{self.kind} {self.period}"

    @property
    def is_over(self) -> bool:
        return self.state in (ExportState.FINISHED, ExportState.FAILED)

    @property
    def division(self) -> str:
        """What the report is divided by, in words."""
        return self.group_by.replace("_", " ").replace("api", "API")

    @property
    def percent(self) -> int:
        return 100 * self.row_count // self.row_total if self.row_total else 0
