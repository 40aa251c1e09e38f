"""Prices with history: a version per model and date, never edited (a trigger refuses UPDATE and DELETE)."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Price(models.Model):
    """Nano-units per million tokens from a date on, for everyone or, with an organization, for that one only."""

    model = models.CharField(max_length=200)
    organization = models.ForeignKey(
        "portal.Organization", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    currency = models.CharField(max_length=3, default="USD")
    input_nano = models.BigIntegerField()
    # Unset: cached input costs what input costs.
    cached_input_nano = models.BigIntegerField(null=True, blank=True)
    output_nano = models.BigIntegerField()
    effective_from = models.DateTimeField()
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_price"
        constraints = [
            models.UniqueConstraint(
                name="billing_price_one_per_date",
                fields=["model", "organization", "effective_from"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="billing_price_not_negative",
                condition=models.Q(input_nano__gte=0, output_nano__gte=0)
                & (models.Q(cached_input_nano__isnull=True) | models.Q(cached_input_nano__gte=0)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.effective_from:%Y-%m-%d %H:%M}"
