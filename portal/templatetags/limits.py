"""What limits and templates of limits say, in the reader's language."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import template
from django.template.defaultfilters import floatformat

from portal.amounts import typed_amount
from portal.quotas import wording
from portal.templatetags.portal import money

register = template.Library()


@register.simple_tag
def limit_name(limit: Any) -> str:
    """Of anything with a kind and a window."""
    return wording.limit_name(limit.kind, limit.window)


@register.simple_tag
def limit_amount(limit: Any, currency: str, kind: str = "") -> str:
    """How much it allows; `kind` where the limit does not say itself."""
    return wording.limit_amount(kind or limit.kind, limit.limit, currency)


@register.simple_tag
def limit_text(limit: Any, currency: str) -> str:
    return wording.limit_text(limit.kind, limit.window, limit.limit, currency)


@register.simple_tag
def figure(amount_nano: int, currency: str) -> str:
    """An amount in a currency, or of whichever the organization has: then a figure alone."""
    return money(amount_nano, currency) if currency else typed_amount(amount_nano)


@register.filter
def basis_points(value: int) -> str:
    """1250 as 12.5 %."""
    return f"{floatformat(Decimal(value) / 100, -2)} %"
