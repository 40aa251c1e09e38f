"""How credit comes to an organization: bought, recharged by itself, by a code, or free at the start; and refunds."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now


class TopUpKind(models.TextChoices):
    CHECKOUT = "checkout", "bought by a person"
    RECHARGE = "recharge", "charged by auto-recharge"


class TopUpState(models.TextChoices):
    # The provider was asked, or is about to be; no money has come.
    OPEN = "open", "Waiting for payment"
    PAID = "paid", "Paid"
    FAILED = "failed", "Failed"
    EXPIRED = "expired", "Expired"


class TopUp(models.Model):
    """Credit that is paid for. Its grant is made with the payment, once, in the same transaction."""

    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="top_ups")
    kind = models.CharField(max_length=10, choices=TopUpKind)
    # Names the act: the form that was sent, or the recharge; a repeat finds the same top-up.
    key = models.CharField(max_length=200, unique=True)
    state = models.CharField(max_length=10, choices=TopUpState, default=TopUpState.OPEN)
    currency = models.CharField(max_length=3)
    # The credit, and the tax that is charged with it.
    amount_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    tax_note = models.CharField(max_length=200, blank=True)
    keeps_card = models.BooleanField(default=False)
    provider = models.CharField(max_length=20, blank=True)
    # The provider's Checkout session, and the payment that came of it.
    session_id = models.CharField(max_length=200, blank=True)
    payment_id = models.CharField(max_length=200, blank=True)
    url = models.TextField(blank=True)
    failure = models.CharField(max_length=300, blank=True)
    grant = models.OneToOneField(
        "billing.CreditGrant", null=True, blank=True, on_delete=models.PROTECT, related_name="top_up"
    )
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "billing_top_up"
        constraints = [
            models.CheckConstraint(name="billing_top_up_state", condition=Q(state__in=TopUpState.values)),
            models.CheckConstraint(name="billing_top_up_positive", condition=Q(amount_minor__gt=0, tax_minor__gte=0)),
            models.CheckConstraint(
                name="billing_top_up_granted_when_paid",
                condition=Q(state="paid", grant__isnull=False) | (~Q(state="paid") & Q(grant__isnull=True)),
            ),
            # One charge at a time, however many processes see the deficit.
            models.UniqueConstraint(
                name="billing_one_open_recharge", fields=["organization"], condition=Q(kind="recharge", state="open")
            ),
            models.UniqueConstraint(
                name="billing_top_up_payment_once", fields=["provider", "payment_id"], condition=~Q(payment_id="")
            ),
        ]
        indexes = [models.Index(F("organization"), F("id").desc(), name="billing_top_up_by_org")]

    def __str__(self) -> str:
        return f"top-up {self.id}"

    @property
    def total_minor(self) -> int:
        return self.amount_minor + self.tax_minor


class AutoRecharge(models.Model):
    """Buys credit by itself when it runs low: at most `monthly_ceiling_minor` a calendar month of the billing zone."""

    organization = models.OneToOneField(
        "portal.Organization", primary_key=True, on_delete=models.PROTECT, related_name="auto_recharge"
    )
    is_enabled = models.BooleanField()
    threshold_minor = models.BigIntegerField()
    amount_minor = models.BigIntegerField()
    monthly_ceiling_minor = models.BigIntegerField()
    # Set when a charge was refused; a person starts it again.
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_reason = models.CharField(max_length=300, blank=True)
    updated_at = models.DateTimeField()

    class Meta:
        db_table = "billing_auto_recharge"
        constraints = [
            models.CheckConstraint(
                name="billing_recharge_amounts",
                condition=Q(threshold_minor__gte=0, amount_minor__gt=0, monthly_ceiling_minor__gte=F("amount_minor")),
            ),
        ]


class RefundState(models.TextChoices):
    PENDING = "pending", "Sent to the provider"
    SUCCEEDED = "succeeded", "Paid back"
    FAILED = "failed", "Refused"


class Refund(models.Model):
    """Money of a top-up that goes back. The credit leaves first; a refusal of the provider brings it back."""

    top_up = models.ForeignKey(TopUp, on_delete=models.PROTECT, related_name="refunds")
    key = models.CharField(max_length=200, unique=True)
    state = models.CharField(max_length=10, choices=RefundState, default=RefundState.PENDING)
    amount_minor = models.BigIntegerField()
    tax_minor = models.BigIntegerField()
    reason = models.CharField(max_length=300)
    external_id = models.CharField(max_length=200, blank=True)
    failure = models.CharField(max_length=300, blank=True)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "billing_refund"
        constraints = [
            models.CheckConstraint(name="billing_refund_state", condition=Q(state__in=RefundState.values)),
            models.CheckConstraint(name="billing_refund_positive", condition=Q(amount_minor__gt=0, tax_minor__gte=0)),
        ]

    @property
    def total_minor(self) -> int:
        return self.amount_minor + self.tax_minor


class PromoCode(models.Model):
    """A code that gives credit, once per organization and at most `max_redemptions` times in all."""

    code = models.CharField(max_length=40, unique=True)
    description = models.CharField(max_length=200)
    amount_nano = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    max_redemptions = models.PositiveIntegerField()
    redeemed_count = models.PositiveIntegerField(default=0)
    valid_from = models.DateTimeField()
    valid_until = models.DateTimeField(null=True, blank=True)
    # How long the credit lasts once it is given; null: without end.
    credit_days = models.PositiveIntegerField(null=True, blank=True)
    is_active = models.BooleanField(default=True)
    actor_id = models.BigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_promo_code"
        constraints = [
            models.CheckConstraint(
                name="billing_promo_positive", condition=Q(amount_nano__gt=0, max_redemptions__gt=0)
            ),
            models.CheckConstraint(
                name="billing_promo_not_overdrawn", condition=Q(redeemed_count__lte=F("max_redemptions"))
            ),
            models.CheckConstraint(name="billing_promo_form", condition=Q(code__regex=r"^[A-Z0-9][A-Z0-9-]{3,39}$")),
        ]

    def __str__(self) -> str:
        return self.code


class PromoRedemption(models.Model):
    promo_code = models.ForeignKey(PromoCode, on_delete=models.PROTECT, related_name="redemptions")
    organization = models.ForeignKey("portal.Organization", on_delete=models.PROTECT, related_name="+")
    grant = models.OneToOneField("billing.CreditGrant", on_delete=models.PROTECT, related_name="+")
    actor_id = models.BigIntegerField(null=True, blank=True)
    redeemed_at = models.DateTimeField()

    class Meta:
        db_table = "billing_promo_redemption"
        constraints = [
            models.UniqueConstraint(name="billing_promo_once", fields=["promo_code", "organization"]),
        ]


class FreeCreditClaim(models.Model):
    """Who had the free credit of a newcomer: once per person, by the digest of their address, and per organization."""

    person_digest = models.CharField(max_length=64, unique=True)
    organization = models.OneToOneField(
        "portal.Organization", primary_key=True, on_delete=models.PROTECT, related_name="+"
    )
    claimed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_free_credit_claim"
