"""Showback (what each part used) and chargeback (what each part pays), tied to the invoice to the cent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from billing.errors import ExportRefused
from billing.exports.names import Names
from billing.exports.sources import Scope, UsageGroup, groups
from billing.exports.table import Column, Row
from billing.invoices.models import LineKind, TokenKind
from billing.money import from_minor, to_decimal

# By what the reports divide a month: the field of the usage, and its heading.
DIVISIONS = {
    "project": "project_id",
    "api_key": "api_key_id",
    # Who made the key.
    "member": "api_key_id",
    "model": "model",
    "end_user": "end_user",
}

SHOWBACK = (
    Column("period"),
    Column("division"),
    Column("id"),
    Column("name"),
    Column("requests", "integer"),
    Column("input_tokens", "integer"),
    Column("cached_input_tokens", "integer"),
    Column("output_tokens", "integer"),
    Column("cost", "decimal"),
    Column("currency"),
)
CHARGEBACK = (
    Column("period"),
    Column("invoice"),
    Column("division"),
    Column("id"),
    Column("name"),
    Column("usage_exact", "decimal"),
    Column("usage", "decimal"),
    Column("fees", "decimal"),
    Column("credit", "decimal"),
    Column("tax", "decimal"),
    Column("total", "decimal"),
    Column("currency"),
)


def allocate(total: int, weights: Sequence[int]) -> list[int]:
    """Whole parts of `total` in proportion, which sum to it: the largest remainders get what is left over.

    Weights below zero count as none; without any weight the first part gets all.
    """
    if not weights:
        return []
    weights = [max(weight, 0) for weight in weights]
    whole = sum(weights)
    if whole == 0:
        return [total, *[0] * (len(weights) - 1)]
    sign, amount = (-1, -total) if total < 0 else (1, total)
    parts = [amount * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda place: (-(amount * weights[place] % whole), place))
    for place in by_remainder[: amount - sum(parts)]:
        parts[place] += 1
    return [sign * part for part in parts]


@dataclass
class _Part:
    identifier: str
    name: str
    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_nano: int = 0


# What has a rate of its own is still input or output; a minimum has no tokens.
_COLUMN_OF: dict[str, str] = {
    TokenKind.INPUT: "input_tokens",
    TokenKind.CACHE_WRITE: "input_tokens",
    TokenKind.CACHED_INPUT: "cached_input_tokens",
    TokenKind.OUTPUT: "output_tokens",
    TokenKind.REASONING: "output_tokens",
}


def _parts(scope: Scope, division: str, names: Names) -> list[_Part]:
    found: dict[str, _Part] = {}
    for group in groups(scope, DIVISIONS[division]):
        identifier, name = _identity(group, division, names)
        part = found.setdefault(identifier, _Part(identifier, name))
        if column := _COLUMN_OF.get(group.token_kind):
            setattr(part, column, getattr(part, column) + group.tokens)
        part.cost_nano += group.cost_nano
        if group.token_kind == TokenKind.INPUT:
            # A request has a line of each kind; it counts once.
            part.requests += group.requests
    return sorted(found.values(), key=lambda part: (-part.cost_nano, part.identifier))


def _identity(group: UsageGroup, division: str, names: Names) -> tuple[str, str]:
    value = getattr(group, DIVISIONS[division])
    if division == "member":
        number, name = names.key_makers.get(value or 0, ("", "(none)"))
        return str(number), name
    if value in (None, ""):
        return "", "(none)"
    known = {"project": names.projects, "api_key": names.api_keys}.get(division, {})
    return str(value), known.get(value, str(value))


def showback(scope: Scope, division: str, names: Names) -> Iterator[Row]:
    """Each part's usage and exact cost, dearest first; the costs sum to the invoice's exact usage."""
    for part in _parts(scope, division, names):
        yield (
            scope.period.name,
            division,
            part.identifier or None,
            part.name,
            part.requests,
            part.input_tokens,
            part.cached_input_tokens,
            part.output_tokens,
            to_decimal(part.cost_nano),
            scope.account.currency,
        )


def chargeback(scope: Scope, division: str, names: Names) -> Iterator[Row]:
    """Each part's share of the invoice in whole cents: usage, fees, credit and tax each sum to the invoice's own.

    Shares follow the exact cost. Refused before the month's invoice is issued: nothing is to be charged on yet.
    """
    invoice = scope.invoice
    if invoice is None:
        raise ExportRefused(
            _("The invoice of %(name)s is not issued yet; use showback until it is, or another month.")
            % {"name": scope.period.name}
        )
    parts = _parts(scope, division, names) or [_Part("", "(none)")]
    weights = [part.cost_nano for part in parts]
    fees_minor = sum(line.amount_minor for line in invoice.lines.all() if line.kind == LineKind.FEE)
    columns = [
        allocate(amount, weights)
        for amount in (
            invoice.subtotal_minor - fees_minor,
            fees_minor,
            -invoice.credit_minor,
            invoice.tax_minor,
        )
    ]
    for part, *shares in zip(parts, *columns, strict=True):
        amounts = [to_decimal(from_minor(share, invoice.currency)) for share in (*shares, sum(shares))]
        yield (
            scope.period.name,
            invoice.number,
            division,
            part.identifier or None,
            part.name,
            to_decimal(part.cost_nano),
            *amounts,
            invoice.currency,
        )
