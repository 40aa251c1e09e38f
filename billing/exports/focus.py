"""FOCUS 1.2, the FinOps Open Cost and Usage Specification: the rows of a month, and the rules of its columns.

Usage is by day, project, key, model and token kind. With an invoice issued, its credit, fees, tax and rounding are rows
of their own, so that Σ BilledCost is the invoice's total, to the cent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.conf import settings

from billing.exports.names import Names
from billing.exports.sources import Scope, UsageGroup, groups
from billing.exports.table import Column, Row, Value
from billing.invoices.models import Invoice, LineKind, TokenKind
from billing.money import NANO, TOKENS_PER_PRICE, from_minor, to_decimal
from billing.pricing.models import Price
from billing.pricing.rating import rates_by_kind
from billing.pricing.selectors import current_price

VERSION = "1.2"
SERVICE_CATEGORY, SERVICE_SUBCATEGORY, SERVICE_NAME = "AI and Machine Learning", "Generative AI", "Model inference"
PRICING_UNIT, CONSUMED_UNIT = "1M Tokens", "Tokens"

# In the specification's order. Ours begin with x_, as it asks; decimals keep what a product of ours can have.
COLUMNS = (
    Column("BilledCost", "decimal", 15),
    Column("BillingAccountId"),
    Column("BillingAccountName"),
    Column("BillingAccountType"),
    Column("BillingCurrency"),
    Column("BillingPeriodEnd", "moment"),
    Column("BillingPeriodStart", "moment"),
    Column("ChargeCategory"),
    Column("ChargeClass"),
    Column("ChargeDescription"),
    Column("ChargeFrequency"),
    Column("ChargePeriodEnd", "moment"),
    Column("ChargePeriodStart", "moment"),
    Column("ConsumedQuantity", "decimal", 15),
    Column("ConsumedUnit"),
    Column("ContractedCost", "decimal", 15),
    Column("ContractedUnitPrice", "decimal", 15),
    Column("EffectiveCost", "decimal", 15),
    Column("InvoiceId"),
    Column("InvoiceIssuerName"),
    Column("ListCost", "decimal", 15),
    Column("ListUnitPrice", "decimal", 15),
    Column("PricingCategory"),
    Column("PricingCurrency"),
    Column("PricingQuantity", "decimal", 15),
    Column("PricingUnit"),
    Column("ProviderName"),
    Column("PublisherName"),
    Column("ResourceId"),
    Column("ResourceName"),
    Column("ResourceType"),
    Column("ServiceCategory"),
    Column("ServiceName"),
    Column("ServiceSubcategory"),
    Column("SkuId"),
    Column("SkuMeter"),
    Column("SkuPriceId"),
    Column("SubAccountId"),
    Column("SubAccountName"),
    Column("SubAccountType"),
    Column("Tags"),
    Column("x_ApiKeyId"),
    Column("x_FocusVersion"),
    Column("x_TokenKind"),
)


@dataclass
class _Charge:
    """One row before its common columns. Costs are exact decimals of the currency."""

    category: str
    description: str
    billed: Decimal
    start: datetime
    end: datetime
    frequency: str = "One-Time"
    is_correction: bool = False
    values: dict[str, Value] = field(default_factory=dict)


def rows(scope: Scope, names: Names) -> Iterator[Row]:
    """Rows in the order of COLUMNS."""
    for charge in _charges(scope, names):
        values = _common(scope, charge) | charge.values
        yield tuple(values.get(column.name) for column in COLUMNS)


def _charges(scope: Scope, names: Names) -> Iterator[_Charge]:
    found = groups(scope, "day", "project_id", "api_key_id", "model", "price_id", "kind")
    prices = Price.objects.in_bulk({group.price_id for group in found if group.price_id})
    usage_nano = 0
    for group in found:
        if group.tokens or group.cost_nano:
            usage_nano += group.cost_nano
            yield _usage(group, prices.get(group.price_id or 0), scope, names)
    if scope.invoice is not None:
        yield from _invoice_charges(scope.invoice, usage_nano, scope)


def _common(scope: Scope, charge: _Charge) -> dict[str, Value]:
    account, organization = scope.account, scope.account.organization
    issuer = settings.INVOICE_ISSUER.splitlines()[0]
    return {
        "BilledCost": charge.billed,
        "EffectiveCost": charge.billed,
        "ContractedCost": charge.billed,
        "ListCost": charge.billed,
        "BillingAccountId": str(organization.pk),
        "BillingAccountName": account.legal_name or organization.name,
        "BillingAccountType": "Organization",
        "BillingCurrency": account.currency,
        "BillingPeriodStart": scope.period.start,
        "BillingPeriodEnd": scope.period.end,
        "ChargeCategory": charge.category,
        "ChargeClass": "Correction" if charge.is_correction else None,
        "ChargeDescription": charge.description,
        "ChargeFrequency": charge.frequency,
        "ChargePeriodStart": charge.start,
        "ChargePeriodEnd": charge.end,
        "InvoiceId": scope.invoice.number if scope.invoice else None,
        "InvoiceIssuerName": issuer,
        "PricingCurrency": account.currency,
        "ProviderName": issuer,
        "PublisherName": issuer,
        "ServiceCategory": SERVICE_CATEGORY,
        "ServiceName": SERVICE_NAME,
        "ServiceSubcategory": SERVICE_SUBCATEGORY,
        "x_FocusVersion": VERSION,
    }


def _usage(group: UsageGroup, price: Price | None, scope: Scope, names: Names) -> _Charge:
    start, end = _day(group.day, scope)
    billed = to_decimal(group.cost_nano)
    is_minimum = group.token_kind == TokenKind.MINIMUM
    # What minimums add is an amount and no product: one unit of it.
    quantity = Decimal(1) if is_minimum else Decimal(group.tokens) / TOKENS_PER_PRICE
    contracted = billed if is_minimum else _unit_price(price, group.token_kind)
    listed = billed if is_minimum else _list_price(price, group, start)
    values: dict[str, Value] = {
        "ConsumedQuantity": Decimal(group.requests if is_minimum else group.tokens),
        "ConsumedUnit": "Requests" if is_minimum else CONSUMED_UNIT,
        "PricingQuantity": quantity,
        "PricingUnit": "Minimum charges" if is_minimum else PRICING_UNIT,
        "PricingCategory": "Standard",
        "ContractedUnitPrice": contracted,
        "ContractedCost": contracted * quantity,
        "ListUnitPrice": listed,
        "ListCost": listed * quantity,
        "ResourceId": group.model,
        "ResourceName": group.model,
        "ResourceType": "Model",
        "SkuId": f"{group.model}/{group.token_kind}",
        "SkuMeter": f"{group.token_kind.replace('_', ' ').capitalize()} tokens",
        "SkuPriceId": f"{group.price_id}/{group.token_kind}",
        "x_ApiKeyId": str(group.api_key_id) if group.api_key_id else None,
        "x_TokenKind": group.token_kind,
    }
    if group.project_id:
        values["SubAccountId"] = str(group.project_id)
        values["SubAccountName"] = names.projects.get(group.project_id, str(group.project_id))
        values["SubAccountType"] = "Project"
    return _Charge(
        "Usage",
        f"{group.model}, {group.token_kind.replace('_', ' ')} tokens",
        billed,
        start,
        end,
        frequency="Usage-Based",
        # A day of a month that another invoice billed before.
        is_correction=start < scope.period.start,
        values=values,
    )


def _day(name: str, scope: Scope) -> tuple[datetime, datetime]:
    zone = ZoneInfo(scope.period.time_zone)
    day = date.fromisoformat(name)
    start, end = (datetime.combine(each, time(), zone) for each in (day, day + timedelta(days=1)))
    return start.astimezone(UTC), end.astimezone(UTC)


def _unit_price(price: Price | None, token_kind: str) -> Decimal:
    """Per million tokens; free without a price."""
    if price is None:
        return Decimal(0)
    return Decimal(rates_by_kind(price)[token_kind]) / NANO


def _list_price(price: Price | None, group: UsageGroup, at: datetime) -> Decimal:
    """What everyone pays, where the organization has a price of its own."""
    if price is not None and price.organization_id:
        listed = current_price(group.model, at + timedelta(days=1), currency=price.currency)
        if listed is not None:
            return Decimal(rates_by_kind(listed)[group.token_kind]) / NANO
    return _unit_price(price, group.token_kind)


def _invoice_charges(invoice: Invoice, usage_nano: int, scope: Scope) -> Iterator[_Charge]:
    """What the invoice has beside usage; the last row is what rounding moved, so that the sum is the total."""
    start, end, currency = scope.period.start, scope.period.end, invoice.currency
    sum_nano = usage_nano

    def charge(category: str, description: str, amount_nano: int, **more: Value) -> _Charge:
        values = dict(more)
        frequency = "Recurring" if category == "Purchase" else "One-Time"
        return _Charge(category, description, to_decimal(amount_nano), start, end, frequency, values=values)

    for line in invoice.lines.filter(kind=LineKind.FEE):
        unit, quantity = to_decimal(line.unit_price_nano), _share(line.quantity, line.days, line.days_of_month)
        sum_nano += line.amount_nano
        yield charge(
            "Purchase",
            line.model,
            line.amount_nano,
            ContractedUnitPrice=unit,
            ListUnitPrice=unit,
            PricingCategory="Standard",
            PricingQuantity=quantity,
            PricingUnit="Months",
            SkuId=f"fee/{line.fee_id}",
            SkuPriceId=f"fee/{line.fee_id}",
        )
    others = (
        ("Credit", "Prepaid credit applied", -invoice.credit_minor),
        ("Tax", invoice.tax_name or "Tax", invoice.tax_minor),
    )
    for category, description, amount_minor in others:
        if amount_minor:
            sum_nano += from_minor(amount_minor, currency)
            yield charge(category, description, from_minor(amount_minor, currency))
    rounding_nano = from_minor(invoice.total_minor, currency) - sum_nano
    if rounding_nano:
        yield charge("Adjustment", "Rounding to whole cents", rounding_nano)


def _share(quantity: int | None, days: int | None, days_of_month: int | None) -> Decimal:
    """How many whole months of the fee; six decimals are enough to read it by."""
    months = Decimal(quantity or 0) * Decimal(days or 0) / Decimal(days_of_month or 1)
    return months.quantize(Decimal("0.000001"))
