"""Prices with history: a version per model and date, never edited (a trigger refuses UPDATE and DELETE)."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class Price(models.Model):
    """Nano-units per million tokens from a date on, for everyone or, with an organization, for that one only.

    A request pays the version pinned on its record, whatever comes later. A version with an end gives way to the one
    before it, so a campaign needs no second change.
    """

    model = models.CharField(max_length=200)
    organization = models.ForeignKey(
        "portal.Organization", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    currency = models.CharField(max_length=3, default="USD")
    input_nano = models.BigIntegerField()
    # Unset: cached input costs what input costs.
    cached_input_nano = models.BigIntegerField(null=True, blank=True)
    # Unset: writing input to the cache costs what input costs.
    cache_write_nano = models.BigIntegerField(null=True, blank=True)
    output_nano = models.BigIntegerField()
    # Unset: reasoning costs what output costs.
    reasoning_nano = models.BigIntegerField(null=True, blank=True)
    # Nano-units that a billed request costs at least.
    minimum_nano = models.BigIntegerField(default=0, db_default=0)
    effective_from = models.DateTimeField()
    effective_until = models.DateTimeField(null=True, blank=True)
    # Set on a version that a discount made of a list price.
    discount = models.ForeignKey("billing.Discount", null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_price"
        constraints = [
            models.UniqueConstraint(
                name="billing_price_one_per_date",
                fields=["model", "organization", "currency", "effective_from"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="billing_price_not_negative",
                condition=Q(input_nano__gte=0, output_nano__gte=0, minimum_nano__gte=0)
                & (Q(cached_input_nano__isnull=True) | Q(cached_input_nano__gte=0))
                & (Q(cache_write_nano__isnull=True) | Q(cache_write_nano__gte=0))
                & (Q(reasoning_nano__isnull=True) | Q(reasoning_nano__gte=0)),
            ),
            models.CheckConstraint(
                name="billing_price_ends_after_start",
                condition=Q(effective_until__isnull=True) | Q(effective_until__gt=F("effective_from")),
            ),
            models.CheckConstraint(
                name="billing_price_discount_has_organization",
                condition=Q(discount__isnull=True) | Q(organization__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.effective_from:%Y-%m-%d %H:%M}"


class Discount(models.Model):
    """So much off the list prices for one organization, while it lasts. Append-only; `services.py` turns it into
    price versions of the organization, so that rating, records and invoices know prices alone."""

    # Names the cause; a repeat changes nothing.
    key = models.CharField(max_length=200, unique=True)
    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="+")
    # Empty: every model.
    model = models.CharField(max_length=200, blank=True)
    basis_points = models.PositiveIntegerField(help_text="Hundredths of a percent: 1000 is 10 %.")
    effective_from = models.DateTimeField()
    effective_until = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=300)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_discount"
        constraints = [
            models.CheckConstraint(
                name="billing_discount_within_whole", condition=Q(basis_points__gte=1, basis_points__lte=10_000)
            ),
            models.CheckConstraint(
                name="billing_discount_ends_after_start",
                condition=Q(effective_until__isnull=True) | Q(effective_until__gt=F("effective_from")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.basis_points} basis points off for {self.organization_id}"

    @property
    def percent(self) -> Decimal:
        return Decimal(self.basis_points).scaleb(-2)

    @property
    def until(self) -> datetime | None:
        """When it stops, as given or before; None: never."""
        end: DiscountEnd | None = getattr(self, "end", None)
        moments = [self.effective_until, end.ends_at if end else None]
        return min((moment for moment in moments if moment is not None), default=None)


class DiscountEnd(models.Model):
    """A discount stops before its time. Append-only, once for each: the versions it made are out of force then."""

    discount = models.OneToOneField(Discount, primary_key=True, on_delete=models.PROTECT, related_name="end")
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=300)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_discount_end"

    def __str__(self) -> str:
        return f"the end of {self.discount}"


class VolumeTier(models.Model):
    """From so many tokens in a month on, the next month's list prices are so much lower, for whoever used them.

    Of several tiers the highest that was reached counts. Replaced as a whole by `services.set_volume_tiers`.
    """

    from_tokens = models.BigIntegerField(unique=True)
    basis_points = models.PositiveIntegerField()

    class Meta:
        db_table = "billing_volume_tier"
        ordering = ("from_tokens",)
        constraints = [
            models.CheckConstraint(
                name="billing_volume_tier_sane",
                condition=Q(from_tokens__gt=0, basis_points__gte=1, basis_points__lte=10_000),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.basis_points} basis points off from {self.from_tokens:,} tokens"
