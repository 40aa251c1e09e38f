"""The operator's page about what is kept how long, and which months of usage records would go."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from billing.usage import retention
from billing.usage.partitions import retired_months
from portal import access
from portal.pages import operator_page

# Every record of the old months is read for it.
KEPT_S = 60


def _kinds() -> list[tuple[str, str, str]]:
    """What is kept, how long, and the setting that says so."""
    months, receipts, responses = (
        settings.USAGE_RETENTION_MONTHS,
        settings.RECEIPT_RETENTION_DAYS,
        settings.RESPONSE_RETENTION_DAYS,
    )
    return [
        ("Prompts and answers of calls", "Never kept", ""),
        (
            "Responses with their prompts, unless the caller sent store: false",
            f"{responses} days after their last use" if responses else "Never kept",
            "RESPONSE_RETENTION_DAYS",
        ),
        ("Answers under an Idempotency-Key", "24 hours", ""),
        (
            "Usage records",
            f"{months} months after their month, once it is closed, invoiced and summed" if months else "For ever",
            "USAGE_RETENTION_MONTHS",
        ),
        (
            "Receipts of engines",
            f"{receipts} days after a closed month" if receipts else "For ever",
            "RECEIPT_RETENTION_DAYS",
        ),
        ("Sums by hour and day", "For ever", ""),
        ("Ledger, invoices, credit notes, payments", "For ever", ""),
        ("Exported files", f"{settings.EXPORT_RETENTION_DAYS} days", "EXPORT_RETENTION_DAYS"),
    ]


def _partitions() -> list[retention.Partition]:
    return retention.old_partitions(now=timezone.now())


@login_required
def page(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    months = settings.USAGE_RETENTION_MONTHS
    context = {
        "kinds": _kinds(),
        "months": months,
        "partitions": cache.get_or_set(
            "operator:retention", lambda: retention.old_partitions(now=timezone.now()), KEPT_S
        ),
        "retired": retired_months(),
    }
    return operator_page(request, "operator_retention", "portal/operator/retention.html", context)
