"""Fixed amounts a month beside usage: a platform fee, or seats."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class RecurringFee(models.Model):
    """`quantity` x `unit_amount_minor` for a whole month, shared out by days when it runs for a part of one.

    Days are those of the billing zone; `ends_on` is the first day without it. Another quantity or price is another fee:
    the old one ends on the day on which the new one starts.
    """

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=120)
    quantity = models.PositiveIntegerField(default=1)
    unit_amount_minor = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    starts_on = models.DateField()
    ends_on = models.DateField(null=True, blank=True)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_recurring_fee"
        constraints = [
            models.CheckConstraint(name="billing_fee_positive", condition=Q(unit_amount_minor__gt=0, quantity__gt=0)),
            models.CheckConstraint(
                name="billing_fee_ends_after_start", condition=Q(ends_on__isnull=True) | Q(ends_on__gt=F("starts_on"))
            ),
        ]
        indexes = [models.Index(fields=["organization", "starts_on"], name="billing_fee_by_org")]

    def __str__(self) -> str:
        return self.name
