"""Billing in the admin: to look at, never to edit. Changes go through services, which the operator pages call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
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


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # Django's has no type arguments when it runs
    """Counts so many rows at most: nobody turns more pages, and counting millions takes seconds."""

    COUNTED = 10_000

    @cached_property
    def count(self) -> int:
        return int(self.object_list.order_by()[: self.COUNTED].count())  # type: ignore[attr-defined]  # a queryset here


def _money(name: str, currency: str) -> Callable[[Any], str]:
    """A field of amounts as people write them. `currency` says where the row has it: `price.currency` follows a key."""
    path, _dot, name_there = currency.rpartition(".")

    @admin.display(description=name.removesuffix("_nano").removesuffix("_minor").replace("_", " "), ordering=name)
    def column(row: Any) -> str:
        amount = getattr(row, name)
        if amount is None:
            return ""
        holder = attrgetter(path)(row) if path else row
        # A record that reconciliation made of a receipt alone has no price.
        if holder is None:
            return f"{to_decimal(amount):f}"
        return (format_nano if name.endswith("_nano") else format_minor)(amount, getattr(holder, name_there))

    return column


def _shown(names: Sequence[str], currency: str) -> list[Any]:
    return [_money(name, currency) if name.endswith(("_nano", "_minor")) else name for name in names]


def _inline(
    model: type[models.Model], title: str, names: Sequence[str], *, currency: str, related: Sequence[str]
) -> type[Any]:
    fields = _shown(names, currency)

    def get_queryset(self: Any, request: HttpRequest) -> Any:
        return TabularInline.get_queryset(self, request).select_related(*related)

    # The heading of a row would say it again, without its units.
    options = {
        "model": model,
        "verbose_name_plural": title,
        "fields": fields,
        "readonly_fields": fields,
        "extra": 0,
        "hide_title": True,
        "get_queryset": get_queryset,
    }
    return type(f"{model.__name__}Inline", (_ReadOnly, TabularInline), options)


def _register(model: type[models.Model], *, currency: str = "currency", **options: Any) -> None:
    """A read-only page; the count of all rows is not worth a scan of a large table."""
    fields = _shown([field.name for field in model._meta.fields if field.name != "id"], currency)
    options["list_display"] = _shown(options["list_display"], currency)
    defaults: dict[str, Any] = {
        "fields": fields,
        "readonly_fields": fields,
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
    currency="price.currency",
    list_select_related=("organization", "price"),
    list_display=("request_id", "organization", "model", "status", "prompt_tokens", "completion_tokens", "cost_nano"),
    list_filter=("status",),
    search_fields=("request_id",),
    ordering=("-request_id",),
)
_register(
    billing.UsageAdjustment,
    currency="record.price.currency",
    list_select_related=("organization", "record__price"),
    list_display=("record", "organization", "reason", "cost_nano", "created_at"),
    ordering=("-id",),
)
_register(
    billing.LedgerTransaction,
    list_display=("id", "kind", "key", "reason", "created_at"),
    list_filter=("kind",),
    search_fields=("key",),
    inlines=(
        _inline(
            billing.LedgerEntry,
            "Entries",
            ("account", "amount_nano", "grant"),
            currency="account.currency",
            related=("account", "grant"),
        ),
    ),
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
    inlines=(
        _inline(
            billing.InvoiceLine,
            "Lines",
            ("kind", "model", "token_kind", "tokens", "unit_price_nano", "amount_nano", "amount_minor"),
            currency="invoice.currency",
            related=("invoice",),
        ),
    ),
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
    currency="top_up.currency",
    list_display=("top_up", "state", "amount_minor", "reason", "failure", "created_at"),
    list_filter=("state",),
    ordering=("-id",),
)
_register(
    billing.CreditNote,
    currency="invoice.currency",
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
