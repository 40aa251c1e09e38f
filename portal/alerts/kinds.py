"""What a rule watches, over which window, and how a delivery stands."""

from __future__ import annotations

from django.db import models


class RuleKind(models.TextChoices):
    BUDGET = "budget", "Budget"
    CREDIT = "credit", "Low credit"
    SPEND_ANOMALY = "spend_anomaly", "Unusual spend"
    FAILURES = "failures", "Failing calls"
    SOFT_LIMIT = "soft_limit", "Soft limits passed"


class BudgetWindow(models.TextChoices):
    DAY = "day", "day"
    WEEK = "week", "week"
    MONTH = "month", "month"


class DeliveryState(models.TextChoices):
    PENDING = "pending", "Waiting"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Failed"
