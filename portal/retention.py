"""What is kept, and how long: for the pages that say so to operators and to members."""

from __future__ import annotations

from django.conf import settings
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.alerts.delivery import RETENTION as DELIVERIES_KEPT


def kept(*, keeps_responses: bool = True) -> list[tuple[str | Promise, str | Promise, str]]:
    """The kind of data, its time, and the setting that says so; empty where nothing can be set. `keeps_responses` is of
    one organization: whether it switched that on."""
    months, receipts, responses = (
        settings.USAGE_RETENTION_MONTHS,
        settings.RECEIPT_RETENTION_DAYS,
        settings.RESPONSE_RETENTION_DAYS,
    )
    return [
        (_("Prompts and answers of calls"), _("Never kept"), ""),
        (
            _("Kept responses with their prompts"),
            _("%(days)s days after their last use") % {"days": responses}
            if responses and keeps_responses
            else _("Never kept"),
            "RESPONSE_RETENTION_DAYS",
        ),
        (_("Answers under an Idempotency-Key"), _("24 hours"), ""),
        (
            _("Usage records"),
            _("%(months)s months after their month, once it is closed, invoiced and summed") % {"months": months}
            if months
            else _("For ever"),
            "USAGE_RETENTION_MONTHS",
        ),
        (
            _("Receipts of engines"),
            _("%(days)s days after a closed month") % {"days": receipts} if receipts else _("For ever"),
            "RECEIPT_RETENTION_DAYS",
        ),
        (_("Sums by hour and day"), _("For ever"), ""),
        (_("Ledger, invoices, credit notes, payments"), _("For ever"), ""),
        (
            _("Exported files"),
            _("%(days)s days") % {"days": settings.EXPORT_RETENTION_DAYS},
            "EXPORT_RETENTION_DAYS",
        ),
        (_("Deliveries to webhooks"), _("%(days)s days") % {"days": DELIVERIES_KEPT.days}, ""),
        (_("Audit log"), _("For ever"), ""),
    ]
