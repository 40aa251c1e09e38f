"""What a version of a template says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from portal.limit_templates.models import TemplateVersion
from portal.quotas.models import LimitFields


@dataclass(frozen=True, slots=True, order=True)
class LimitKey:
    """Which limit: an organization has one of each from its template."""

    kind: str
    window: str
    # Empty: all models.
    model: str = ""


@dataclass(frozen=True, slots=True)
class LimitValue:
    """`limit` is nano-units for spend, else a count."""

    limit: int
    mode: str


@dataclass(frozen=True, slots=True)
class Content:
    """None leaves what the organization has: its credit limit, its prices."""

    limits: dict[LimitKey, LimitValue]
    credit_limit_nano: int | None = None
    discount_basis_points: int | None = None


def key_of(row: LimitFields) -> LimitKey:
    return LimitKey(row.kind, row.window, row.model)


def value_of(row: LimitFields) -> LimitValue:
    return LimitValue(row.limit, row.mode)


def content_of(version: TemplateVersion) -> Content:
    """One query, unless the version's limits are loaded."""
    return Content(
        {key_of(row): value_of(row) for row in version.limits.all()},
        version.credit_limit_nano,
        version.discount_basis_points,
    )
