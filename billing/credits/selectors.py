"""Reads of purchases, refunds, codes and auto-recharge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from billing.credits.models import AutoRecharge, PromoCode, Refund, TopUp
from billing.credits.recharge import spent_this_month_minor
from billing.credits.refunds import refundable_minor


def top_ups_of(organization_id: int) -> QuerySet[TopUp]:
    """Newest first."""
    return TopUp.objects.filter(organization_id=organization_id).order_by("-id")


def find_top_up(top_up_id: int) -> TopUp | None:
    """For whoever checks afterwards that the asker may see it."""
    return TopUp.objects.filter(id=top_up_id).first()


@dataclass(frozen=True)
class Refundable:
    top_up: TopUp
    left_minor: int
    refunds: list[Refund]


def refundable_top_ups(organization_id: int, limit: int = 20) -> list[Refundable]:
    """Paid purchases with what is unspent of each, newest first; for the operator."""
    rows = top_ups_of(organization_id).filter(grant__isnull=False).prefetch_related("refunds")[:limit]
    return [Refundable(row, refundable_minor(row), list(row.refunds.all())) for row in rows]


@dataclass(frozen=True)
class RechargeState:
    rule: AutoRecharge | None
    spent_minor: int


def auto_recharge_of(organization_id: int, *, now: datetime) -> RechargeState:
    rule = AutoRecharge.objects.filter(organization_id=organization_id).first()
    return RechargeState(rule, spent_this_month_minor(organization_id, now))


def promo_codes() -> QuerySet[PromoCode]:
    """Newest first; for the operator."""
    return PromoCode.objects.order_by("-id")
