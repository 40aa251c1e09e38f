"""Double entry, append-only. An entry is signed: positive credits the account, negative debits it.

So a customer's credit and what the house earned are positive, what a customer owes and the cash received are negative,
and every transaction sums to zero. Triggers (migration 0002) refuse UPDATE and DELETE, refuse an unbalanced transaction
at commit, and keep the two projections (`OrganizationBalance`, `GrantBalance`) in the same statement.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class AccountKind(models.TextChoices):
    # Per organization.
    CREDIT = "credit", "customer credit"
    RECEIVABLE = "receivable"
    # Of the house.
    REVENUE = "revenue"
    PROMOTIONS = "promotions"
    ADJUSTMENTS = "adjustments"
    ABSORBED = "absorbed", "usage above a prepaid balance"
    ROUNDING = "rounding"
    CASH = "cash"
    # Collected for the tax office: neither ours nor the customer's.
    TAX = "tax"
    BAD_DEBT = "bad_debt", "invoices given up"


ORGANIZATION_KINDS = (AccountKind.CREDIT, AccountKind.RECEIVABLE)


class LedgerAccount(models.Model):
    kind = models.CharField(max_length=12, choices=AccountKind)
    organization = models.ForeignKey("portal.Organization", null=True, on_delete=models.PROTECT, related_name="+")
    currency = models.CharField(max_length=3)

    class Meta:
        db_table = "billing_ledger_account"
        constraints = [
            models.UniqueConstraint(
                name="billing_ledger_account_unique", fields=["organization", "kind", "currency"], nulls_distinct=False
            ),
            models.CheckConstraint(
                name="billing_ledger_account_owner",
                condition=Q(kind__in=ORGANIZATION_KINDS, organization__isnull=False)
                | (~Q(kind__in=ORGANIZATION_KINDS) & Q(organization__isnull=True)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.organization_id or 'house'} {self.currency}"


class TransactionKind(models.TextChoices):
    USAGE = "usage"
    ADJUSTMENT = "adjustment"
    GRANT = "grant"
    EXPIRY = "expiry"
    ROUNDING = "rounding"
    PAYMENT = "payment"
    FEE = "fee"
    TAX = "tax"
    REFUND = "refund"
    CREDIT_NOTE = "credit_note"
    WRITE_OFF = "write_off"


class LedgerTransaction(models.Model):
    kind = models.CharField(max_length=12, choices=TransactionKind)
    # Names the act, e.g. `usage:<request id>`: a second posting of the same act is refused.
    key = models.CharField(max_length=200, unique=True)
    reason = models.CharField(max_length=300, blank=True)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_ledger_transaction"

    def __str__(self) -> str:
        return self.key


class LedgerEntry(models.Model):
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries", db_index=False)
    # Which grant a credit entry adds to or burns.
    grant = models.ForeignKey(
        "billing.CreditGrant", null=True, on_delete=models.PROTECT, related_name="entries", db_index=False
    )
    amount_nano = models.BigIntegerField()

    class Meta:
        db_table = "billing_ledger_entry"
        constraints = [models.CheckConstraint(name="billing_ledger_entry_not_zero", condition=~Q(amount_nano=0))]
        indexes = [
            models.Index(fields=["account", "id"], name="billing_entry_account"),
            models.Index(fields=["grant"], name="billing_entry_grant", condition=Q(grant__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.amount_nano} on {self.account_id}"


class GrantKind(models.TextChoices):
    PROMOTION = "promotion"
    PURCHASE = "purchase"
    CORRECTION = "correction"


class CreditGrant(models.Model):
    """Prepaid amount with an optional end. Burnt by (priority, expiry, id), lowest and earliest first."""

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="credit_grants")
    kind = models.CharField(max_length=12, choices=GrantKind)
    key = models.CharField(max_length=200, unique=True)
    amount_nano = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    priority = models.SmallIntegerField(default=100)
    expires_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=300)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_credit_grant"
        constraints = [
            models.CheckConstraint(name="billing_grant_positive", condition=Q(amount_nano__gt=0)),
        ]

    def __str__(self) -> str:
        return self.key


class GrantBalance(models.Model):
    """Projection: Σ entries of a grant. `manage.py rebuild_balances` recomputes and compares it."""

    grant = models.OneToOneField(CreditGrant, primary_key=True, on_delete=models.PROTECT, related_name="balance")
    remaining_nano = models.BigIntegerField(default=0)

    class Meta:
        db_table = "billing_grant_balance"
        constraints = [
            models.CheckConstraint(name="billing_grant_balance_not_negative", condition=Q(remaining_nano__gte=0)),
        ]


class OrganizationBalance(models.Model):
    """Projection: Σ entries of an organization's two accounts. Its row is also the lock of what moves them."""

    organization = models.OneToOneField(
        "portal.Organization", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    credit_nano = models.BigIntegerField(default=0)
    receivable_nano = models.BigIntegerField(default=0)

    class Meta:
        db_table = "billing_organization_balance"
        constraints = [
            models.CheckConstraint(name="billing_credit_not_negative", condition=Q(credit_nano__gte=0)),
        ]
