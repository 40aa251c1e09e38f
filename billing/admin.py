"""Billing in the admin: to look at, never to edit. Changes go through services, which the operator pages call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest  # noqa: TID251 - the signatures of ModelAdmin
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin, TabularInline

from billing import models as billing
from billing.money import format_minor, format_nano, to_decimal


class _ReadOnly:
    def has_add_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False


class EntryInline(_ReadOnly, TabularInline):  # type: ignore[misc]  # unfold has no types
    model = billing.LedgerEntry
    fields = ("account", "amount_nano", "grant")
    extra = 0


class LineInline(_ReadOnly, TabularInline):  # type: ignore[misc]  # unfold has no types
    model = billing.InvoiceLine
    fields = ("kind", "model", "token_kind", "tokens", "unit_price_nano", "amount_nano", "amount_minor")
    extra = 0


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # Django's has no type arguments when it runs
    """Counts so many rows at most: nobody turns more pages, and counting millions takes seconds."""

    COUNTED = 10_000

    @cached_property
    def count(self) -> int:
        return int(self.object_list.order_by()[: self.COUNTED].count())  # type: ignore[attr-defined]  # a queryset here


def _money(name: str) -> Callable[[Any], str]:
    """A column of amounts as people write them; without a currency where the row does not say which."""

    @admin.display(description=name.removesuffix("_nano").removesuffix("_minor").replace("_", " "), ordering=name)
    def column(row: Any) -> str:
        amount, currency = getattr(row, name), getattr(row, "currency", "")
        if amount is None:
            return ""
        if name.endswith("_nano"):
            return format_nano(amount, currency) if currency else f"{to_decimal(amount):f}"
        return format_minor(amount, currency)

    return column


def _register(model: type[models.Model], **options: Any) -> None:
    """A read-only page; the count of all rows is not worth a scan of a large table."""
    named = {field.name for field in model._meta.fields}
    is_amount = {name for name in named if name.endswith("_nano") or (name.endswith("_minor") and "currency" in named)}
    options["list_display"] = [_money(name) if name in is_amount else name for name in options["list_display"]]
    defaults: dict[str, Any] = {
        "show_full_result_count": False,
        "paginator": CappedPaginator,
        "list_select_related": True,
        "list_per_page": 50,
    }
    admin.site.register(model, type(f"{model.__name__}Admin", (_ReadOnly, ModelAdmin), {**defaults, **options}))


_register(
    billing.BillingAccount,
    list_display=("organization", "currency", "time_zone", "credit_limit_nano", "email"),
    search_fields=("organization__name", "email"),
)
_register(
    billing.Price,
    list_display=(
        "model",
        "organization",
        "currency",
        "input_nano",
        "cached_input_nano",
        "output_nano",
        "effective_from",
    ),
    search_fields=("model",),
)
_register(
    billing.UsageRecord,
    list_display=("request_id", "organization", "model", "status", "prompt_tokens", "completion_tokens", "cost_nano"),
    list_filter=("status",),
    search_fields=("request_id",),
    ordering=("-request_id",),
)
_register(
    billing.UsageAdjustment,
    list_display=("record", "organization", "reason", "cost_nano", "created_at"),
    ordering=("-id",),
)
_register(
    billing.LedgerTransaction,
    list_display=("id", "kind", "key", "reason", "created_at"),
    list_filter=("kind",),
    search_fields=("key",),
    inlines=(EntryInline,),
    ordering=("-id",),
)
_register(
    billing.CreditGrant,
    list_display=("organization", "kind", "amount_nano", "expires_at", "reason", "created_at"),
    search_fields=("key", "organization__name"),
    ordering=("-id",),
)
_register(
    billing.Invoice,
    list_display=("number", "organization", "period", "status", "currency", "total_minor", "finalized_at"),
    list_filter=("status", "period"),
    search_fields=("number", "organization__name"),
    inlines=(LineInline,),
)
_register(
    billing.InvoicePush,
    list_display=("invoice", "provider", "state", "external_id", "attempts", "updated_at"),
    list_filter=("state",),
)
_register(billing.Payment, list_display=("provider", "provider_payment_id", "invoice", "amount_minor", "received_at"))
_register(
    billing.PaymentEvent,
    list_display=("event_id", "type", "outcome", "note", "received_at"),
    list_filter=("outcome", "type"),
    ordering=("-id",),
)
_register(
    billing.Receipt,
    list_display=("source", "sequence", "request_id", "status", "match_class", "is_settled", "received_at"),
    list_filter=("match_class", "is_settled"),
    search_fields=("request_id",),
    ordering=("-id",),
)
_register(
    billing.TopUp,
    list_display=("organization", "kind", "state", "amount_minor", "tax_minor", "failure", "created_at"),
    list_filter=("state",),
    search_fields=("organization__name", "payment_id", "session_id"),
    ordering=("-id",),
)
_register(
    billing.Refund,
    list_display=("top_up", "state", "amount_minor", "reason", "failure", "created_at"),
    list_filter=("state",),
    ordering=("-id",),
)
_register(
    billing.CreditNote,
    list_display=("number", "invoice", "effect", "amount_minor", "reason", "issued_at", "push_error"),
    search_fields=("number", "invoice__number"),
    ordering=("-id",),
)
_register(
    billing.PromoRedemption,
    list_display=("promo_code", "organization", "redeemed_at"),
    search_fields=("promo_code__code", "organization__name"),
    ordering=("-id",),
)
_register(
    billing.Discount,
    list_display=("organization", "model", "percent", "effective_from", "effective_until", "reason"),
    search_fields=("organization__name",),
    ordering=("-id",),
)
_register(
    billing.Export,
    list_display=("organization", "kind", "format", "period", "state", "row_count", "error", "created_at"),
    list_filter=("state",),
    search_fields=("organization__name",),
    ordering=("-id",),
)
