"""What a rule watches, over which window, and how a delivery stands."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class RuleKind(models.TextChoices):
    BUDGET = "budget", _("Budget")
    CREDIT = "credit", _("Low credit")
    SPEND_ANOMALY = "spend_anomaly", _("Unusual spend")
    FAILURES = "failures", _("Failing calls")
    SOFT_LIMIT = "soft_limit", _("Soft limits passed")


class BudgetWindow(models.TextChoices):
    DAY = "day", _("day")
    WEEK = "week", _("week")
    MONTH = "month", _("month")


class DeliveryState(models.TextChoices):
    PENDING = "pending", _("Waiting")
    DELIVERED = "delivered", _("Delivered")
    FAILED = "failed", _("Failed")
