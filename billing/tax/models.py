"""Tax rates with history: a version per country and date, never edited (a trigger refuses UPDATE and DELETE)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class TaxRate(models.Model):
    """What we must charge customers of a country from a date on. Without a row, nothing is charged there."""

    country = models.CharField(max_length=2, help_text="ISO 3166 code, e.g. DE.")
    name = models.CharField(max_length=40, help_text="As the invoice calls it, e.g. VAT.")
    percent = models.DecimalField(max_digits=7, decimal_places=4)
    effective_from = models.DateField()
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_tax_rate"
        constraints = [
            models.UniqueConstraint(name="billing_tax_rate_one_per_date", fields=["country", "effective_from"]),
            models.CheckConstraint(name="billing_tax_rate_country", condition=Q(country__regex=r"^[A-Z]{2}$")),
            models.CheckConstraint(name="billing_tax_rate_percent", condition=Q(percent__gte=0, percent__lt=100)),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.percent.normalize():f} % in {self.country} from {self.effective_from}"


class TaxIdCheck(models.Model):
    """What the register said of a number on a day. Append-only: it is the evidence for a reverse charge."""

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="+")
    tax_id = models.CharField(max_length=64)
    is_valid = models.BooleanField()
    # The holder's name, where the country publishes it.
    holder = models.CharField(max_length=200, blank=True)
    # The register's own id of the question.
    consultation = models.CharField(max_length=64, blank=True)
    checked_at = models.DateTimeField()

    class Meta:
        db_table = "billing_tax_id_check"
        indexes = [models.Index(fields=["tax_id", "-id"], name="billing_tax_id_check_last")]

    def __str__(self) -> str:
        return f"{self.tax_id} {'valid' if self.is_valid else 'unknown'} on {self.checked_at:%Y-%m-%d}"


class TaxKind(models.TextChoices):
    # No rate of ours applies: another country's buyer, or an issuer who charges no tax.
    NONE = "none"
    CHARGED = "charged"
    # The buyer, a business elsewhere in the union, accounts for it.
    REVERSE_CHARGE = "reverse"
    EXEMPT = "exempt"
