"""Reads of fees."""

from __future__ import annotations

from datetime import date

from django.db.models import Q

from billing.fees.models import RecurringFee


def fees_of(organization_id: int) -> list[RecurringFee]:
    """Running and ended, newest first."""
    return list(RecurringFee.objects.filter(organization_id=organization_id).order_by("-starts_on", "-id"))


def fees_in(organization_id: int, first: date, after: date) -> list[RecurringFee]:
    """Those that run on a day of [first, after)."""
    running = Q(ends_on__isnull=True) | Q(ends_on__gt=first)
    rows = RecurringFee.objects.filter(running, organization_id=organization_id, starts_on__lt=after)
    return list(rows.order_by("id"))
