"""What was done about an unpaid invoice: one row a step, each step once."""

from __future__ import annotations

from django.db import models


class DunningStep(models.Model):
    """`name` is that of the policy. The mail goes out after the commit; `mailed_at` says that it did."""

    invoice = models.ForeignKey("billing.Invoice", on_delete=models.PROTECT, related_name="dunning_steps")
    name = models.CharField(max_length=30)
    done_at = models.DateTimeField()
    mailed_at = models.DateTimeField(null=True, blank=True)
    # What came of trying the kept card; empty when there was none to try.
    payment_note = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "billing_dunning_step"
        constraints = [models.UniqueConstraint(name="billing_dunning_step_once", fields=["invoice", "name"])]
        indexes = [
            models.Index(fields=["id"], name="billing_dunning_to_mail", condition=models.Q(mailed_at__isnull=True))
        ]

    def __str__(self) -> str:
        return self.name
