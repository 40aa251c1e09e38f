"""The payer's side of an organization."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class BillingAccount(models.Model):
    """One per organization: currency, billing zone, who the invoice is addressed to, and how far it may owe."""

    organization = models.OneToOneField("portal.Organization", on_delete=models.PROTECT, related_name="billing_account")
    currency = models.CharField(max_length=3, default="USD")
    # The zone whose calendar months are the invoice periods.
    time_zone = models.CharField(max_length=64, default="UTC")
    # 0 is prepaid: nothing runs without credit. Above 0, usage may be owed up to here and is invoiced.
    credit_limit_nano = models.BigIntegerField(default=0)
    email = models.EmailField()
    legal_name = models.CharField(max_length=200, blank=True)
    address_line1 = models.CharField(max_length=200, blank=True)
    address_line2 = models.CharField(max_length=200, blank=True)
    postal_code = models.CharField(max_length=32, blank=True)
    city = models.CharField(max_length=120, blank=True)
    region = models.CharField(max_length=120, blank=True)
    country = models.CharField(max_length=2, blank=True, help_text="ISO 3166 code, e.g. DE.")
    tax_id = models.CharField(max_length=64, blank=True)
    # Why no tax is charged although it would be, e.g. the number of a certificate; empty: it is charged.
    tax_exemption = models.CharField(max_length=200, blank=True)
    # How dates and money are written on what is sent to the payer, and in which language.
    language = models.CharField(max_length=5, default="en", db_default="en")
    stripe_customer_id = models.CharField(max_length=64, blank=True)
    # A card that the payer let us keep, for auto-recharge and unpaid invoices.
    stripe_payment_method_id = models.CharField(max_length=64, blank=True, db_default="", default="")
    # Since when the organization is suspended for an unpaid invoice, by dunning and not by a person.
    suspended_for_debt_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_account"
        constraints = [
            models.CheckConstraint(
                name="billing_account_limit_not_negative", condition=models.Q(credit_limit_nano__gte=0)
            ),
            models.CheckConstraint(
                name="billing_account_currency_is_code", condition=models.Q(currency__regex=r"^[A-Z]{3}$")
            ),
        ]

    def __str__(self) -> str:
        return f"billing account of organization {self.organization_id}"
