"""Limit templates as an operator sees them, as JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rest_framework import serializers

from api.rest.serializers.money import NanoField
from billing.money import to_decimal
from portal.limit_templates.content import LimitKey, LimitValue
from portal.limit_templates.effects import Effect, LimitChange
from portal.plain_text import refuse_invisible
from portal.quotas.forms import CHOICES
from portal.quotas.replay import CALLS_LOOKED_AT


def amount_text(kind: str, limit: int) -> str:
    """Spend as a decimal amount, everything else as a number."""
    return f"{to_decimal(limit):f}" if kind == "spend" else str(limit)


class TemplateLimitSerializer(serializers.Serializer[Any]):
    """One limit of the whole organization."""

    what = serializers.ChoiceField(list(CHOICES.items()), help_text="Kind and window, such as `spend:month`.")
    amount = serializers.CharField(max_length=30, help_text="Spend is in the currency of the organization.")
    model = serializers.CharField(required=False, allow_blank=True, default="", help_text="Empty: all models.")
    mode = serializers.ChoiceField(["hard", "soft", "shadow"], required=False, default="hard")

    def to_representation(self, limit: Any) -> dict[str, Any]:
        return {
            "what": f"{limit.kind}:{limit.window}",
            "amount": amount_text(limit.kind, limit.limit),
            "model": limit.model,
            "mode": limit.mode,
        }


class TemplateSerializer(serializers.Serializer[Any]):
    """A template as its newest version says."""

    id = serializers.IntegerField(source="template.id")
    name = serializers.CharField(source="template.name")
    is_default = serializers.BooleanField(source="template.is_default", help_text="New organizations begin with it.")
    is_retired = serializers.BooleanField(
        source="template.is_retired", help_text="It is given to nobody any more; who has it keeps it."
    )
    version = serializers.IntegerField(source="version.number")
    limits = TemplateLimitSerializer(source="version.limits.all", many=True)
    credit_limit = NanoField(source="version.credit_limit_nano", allow_null=True, help_text="null: left as it is.")
    discount_percent = serializers.SerializerMethodField(help_text="Off the list prices; null: none by the template.")
    organizations = serializers.IntegerField(source="used", help_text="That use it.")
    on_older_versions = serializers.IntegerField(source="older")
    created_by = serializers.EmailField(source="version.created_by.email", help_text="Of the version.")
    created_at = serializers.DateTimeField(source="version.created_at")

    def get_discount_percent(self, row: Any) -> str | None:
        points = row.version.discount_basis_points
        return None if points is None else str(Decimal(points) / 100)


class NewTemplateSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=60, validators=[refuse_invisible])
    limits = TemplateLimitSerializer(many=True)
    credit_limit = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=24, help_text="Empty: left as it is; `0`: prepaid."
    )
    discount_percent = serializers.DecimalField(
        required=False, allow_null=True, default=None, max_digits=5, decimal_places=2, help_text="Off the list prices."
    )
    reason = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=300, validators=[refuse_invisible]
    )


class DefaultSerializer(serializers.Serializer[Any]):
    is_default = serializers.BooleanField()


class RetirementSerializer(serializers.Serializer[Any]):
    is_retired = serializers.BooleanField()
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class TemplateUseSerializer(serializers.Serializer[Any]):
    organization = serializers.CharField(source="organization.slug")
    version = serializers.IntegerField(source="version.number")
    applied_at = serializers.DateTimeField()


class SelectionSerializer(serializers.Serializer[Any]):
    organization = serializers.CharField(required=False, allow_blank=True, default="", help_text="One, by its slug.")
    q = serializers.CharField(
        required=False, allow_blank=True, default="", help_text="Or all: part of a name, a slug or a member's address."
    )
    uses = serializers.CharField(
        required=False, allow_blank=True, default="", help_text="And that use the template of this id, or `none`."
    )


class LimitChangeSerializer(serializers.Serializer[Any]):
    """null: no such limit from a template."""

    what = serializers.CharField()
    model = serializers.CharField()
    before = serializers.CharField(allow_null=True)
    after = serializers.CharField(allow_null=True)
    mode = serializers.CharField(allow_null=True)
    would_have_refused = serializers.IntegerField(
        allow_null=True, help_text="Of last week's calls; null unless one organization is asked about."
    )
    calls_looked_at = serializers.IntegerField(
        allow_null=True, help_text=f"The newest of the week, {CALLS_LOOKED_AT:,} at most."
    )


class EffectSerializer(serializers.Serializer[Any]):
    """What the newest version would change for an organization; null where nothing."""

    organization = serializers.CharField()
    currency = serializers.CharField()
    version = serializers.IntegerField(allow_null=True, help_text="That it has of the template that it uses.")
    template_id = serializers.IntegerField(allow_null=True)
    limits = LimitChangeSerializer(many=True)
    credit_limit_before = serializers.CharField(allow_null=True)
    credit_limit_after = serializers.CharField(allow_null=True)
    discount_percent_before = serializers.CharField(allow_null=True)
    discount_percent_after = serializers.CharField(allow_null=True)


class PreviewSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField(help_text="Organizations that are selected.")
    data = EffectSerializer(many=True, help_text="The first 20.")  # type: ignore[assignment]  # as pages have


def effect_of(effect: Effect, replays: dict[LimitKey, Any]) -> dict[str, Any]:
    """The effect as its serializer takes it."""
    credit = effect.credit_limit and tuple(f"{to_decimal(amount):f}" for amount in effect.credit_limit)
    discount = effect.discount and tuple(str(Decimal(points) / 100) for points in effect.discount)
    return {
        "organization": effect.organization.slug,
        "currency": effect.currency,
        "version": effect.use.version.number if effect.use else None,
        "template_id": effect.use.version.template_id if effect.use else None,
        "limits": [_change(change, replays.get(change.key)) for change in effect.limits],
        "credit_limit_before": credit[0] if credit else None,
        "credit_limit_after": credit[1] if credit else None,
        "discount_percent_before": discount[0] if discount else None,
        "discount_percent_after": discount[1] if discount else None,
    }


def _change(change: LimitChange, replay: Any) -> dict[str, Any]:
    def amount(value: LimitValue | None) -> str | None:
        return None if value is None else amount_text(change.key.kind, value.limit)

    return {
        "what": f"{change.key.kind}:{change.key.window}",
        "model": change.key.model,
        "before": amount(change.before),
        "after": amount(change.after),
        "mode": change.after.mode if change.after else None,
        "would_have_refused": replay.refused if replay else None,
        "calls_looked_at": replay.calls if replay else None,
    }


class TemplateRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    version = serializers.IntegerField(source="version.number")
    state = serializers.CharField(help_text="queued, running or finished.")
    percent = serializers.IntegerField()
    total = serializers.IntegerField()
    changed = serializers.IntegerField()
    unchanged = serializers.IntegerField(help_text="Had all of it already.")
    failed = serializers.IntegerField()
    failures = serializers.JSONField(help_text="The first ones, as organization and reason.")
    started_by = serializers.EmailField(source="started_by.email")
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class NewTemplateRunSerializer(serializers.Serializer[Any]):
    q = serializers.CharField(required=False, allow_blank=True, default="")
    uses = serializers.CharField(required=False, allow_blank=True, default="")
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class TenantTemplateSerializer(serializers.Serializer[Any]):
    """Which template an organization has; null: none."""

    template_id = serializers.IntegerField(source="version.template_id", allow_null=True, default=None)
    name = serializers.CharField(source="version.template.name", allow_null=True, default=None)
    version = serializers.IntegerField(source="version.number", allow_null=True, default=None)
    applied_at = serializers.DateTimeField(allow_null=True, default=None)


class ApplySerializer(serializers.Serializer[Any]):
    template_id = serializers.IntegerField()
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])


class WithdrawSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=300, validators=[refuse_invisible])
