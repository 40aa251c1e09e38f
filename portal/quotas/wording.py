"""What a limit is called, in the reader's language."""

from __future__ import annotations

from django.utils.translation import gettext as _

from portal.amounts import typed_amount
from portal.quotas.models import QuotaKind, Window
from portal.templatetags.portal import count, money

KINDS = {kind.value: kind.label for kind in QuotaKind}
WINDOWS = {window.value: window.label for window in Window}


def limit_name(kind: str, window: str) -> str:
    """Requests per minute; requests at the same time have no window."""
    return str(KINDS[kind]) if kind == QuotaKind.CONCURRENCY else f"{KINDS[kind]} {WINDOWS[window]}"


def limit_amount(kind: str, limit: int, currency: str) -> str:
    """Nano-units of `currency` for spend, a figure alone where none is known; else a count."""
    if kind != QuotaKind.SPEND:
        return count(limit)
    return money(limit, currency) if currency else typed_amount(limit)


def limit_text(kind: str, window: str, limit: int, currency: str) -> str:
    """With how much it allows."""
    most = limit_amount(kind, limit, currency)
    return _("%(limit)s, at most %(most)s") % {"limit": limit_name(kind, window), "most": most}
