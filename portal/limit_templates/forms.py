from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from portal.amounts import read_nano, typed_amount
from portal.catalog.selectors import published_models
from portal.limit_templates.content import Content, LimitKey, LimitValue
from portal.limit_templates.models import LimitTemplate
from portal.limit_templates.selectors import WITHOUT
from portal.organizations.models import Organization
from portal.organizations.selectors import organization_by_slug
from portal.plain_text import refuse_invisible
from portal.quotas.forms import CHOICES, read_limit
from portal.quotas.models import Mode, QuotaKind

# Empty rows for more limits.
SPARE_ROWS = 3


class LimitRow(forms.Form):
    """One limit; a row without an amount is none."""

    what = forms.ChoiceField(choices=list(CHOICES.items()), required=False, label=_("Limits"))
    amount = forms.CharField(
        max_length=30, required=False, label=_("At most"), widget=forms.TextInput({"inputmode": "decimal"})
    )
    model = forms.ChoiceField(required=False, label=_("Model"))
    mode = forms.ChoiceField(choices=Mode.choices, required=False, label=_("When there is no room"))

    def __init__(self, *args: Any, models: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choice = self.fields["model"]
        assert isinstance(choice, forms.ChoiceField)
        choice.choices = [("", _("All models")), *((name, name) for name in models)]

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not data.get("amount"):
            return data
        kind, _separator, window = data.get("what", "").partition(":")
        if not kind:
            raise ValidationError({"what": _("Say what is limited.")})
        try:
            limit = read_limit(kind, data["amount"])
        except ValidationError as error:
            raise ValidationError({"amount": error.messages}) from None
        data["key"] = LimitKey(kind, window, data.get("model", ""))
        data["value"] = LimitValue(limit, data.get("mode") or Mode.HARD.value)
        return data


class LimitRows(forms.BaseFormSet):  # type: ignore[type-arg]  # not subscriptable when it runs
    def clean(self) -> None:
        seen: set[LimitKey] = set()
        for form in self.forms:
            key = form.cleaned_data.get("key") if form.is_valid() else None
            if key in seen:
                form.add_error("what", _("This limit stands in another row already."))
            elif key is not None:
                seen.add(key)

    def limits(self) -> dict[LimitKey, LimitValue]:
        return {
            form.cleaned_data["key"]: form.cleaned_data["value"] for form in self.forms if "key" in form.cleaned_data
        }


def limit_rows(data: Any = None, content: Content | None = None) -> LimitRows:
    """A row for each limit and some empty ones."""
    limits = sorted(content.limits.items()) if content else []
    # A model that is offered no more keeps its limit.
    models = sorted({model.name for model in published_models()} | {key.model for key, _value in limits if key.model})
    made = forms.formset_factory(LimitRow, formset=LimitRows, extra=SPARE_ROWS if limits else 5, max_num=40)
    initial = [
        {
            "what": f"{key.kind}:{key.window}",
            "amount": typed_amount(value.limit) if key.kind == QuotaKind.SPEND else f"{value.limit}",
            "model": key.model,
            "mode": value.mode,
        }
        for key, value in limits
    ]
    return cast(LimitRows, made(data, initial=initial, prefix="limit", form_kwargs={"models": models}))


class TemplateForm(forms.Form):
    name = forms.CharField(
        max_length=60,
        validators=[refuse_invisible],
        help_text=_("Such as Trial, Standard or Enterprise. Organizations see it."),
    )
    credit_limit = forms.CharField(
        max_length=24,
        required=False,
        label=_("Credit limit"),
        help_text=_("How far an organization may owe. Zero is prepaid; empty: left as it is."),
        widget=forms.TextInput({"inputmode": "decimal"}),
    )
    discount = forms.DecimalField(
        required=False,
        label=_("Percent off the list prices"),
        max_digits=5,
        decimal_places=2,
        min_value=Decimal("0.01"),
        max_value=100,
        help_text=_("Of all models, while it has the template. Empty: none by the template."),
    )
    reason = forms.CharField(
        required=False, max_length=300, validators=[refuse_invisible], help_text=_("Kept in the audit log.")
    )

    def clean_credit_limit(self) -> int | None:
        text = self.cleaned_data["credit_limit"].strip()
        if not text:
            return None
        amount = read_nano(text)
        if not 0 <= amount <= 10**18:
            raise ValidationError(_("Enter zero or more, and at most 1,000,000,000."))
        return amount

    def content(self, rows: LimitRows) -> Content:
        percent = self.cleaned_data["discount"]
        return Content(rows.limits(), self.cleaned_data["credit_limit"], int(percent * 100) if percent else None)


class ChangeForm(TemplateForm):
    """`move` asks what becomes of those who use the template; a page without the question keeps them where they are."""

    move = forms.ChoiceField(
        required=False,
        choices=[
            ("keep", _("They keep the version that they have")),
            ("move", _("Show me what the new version would change for them")),
        ],
        initial="keep",
        label=_("Organizations that use it"),
        widget=forms.RadioSelect,
    )


def initial_of(template: LimitTemplate, content: Content) -> dict[str, Any]:
    return {
        "name": template.name,
        "credit_limit": "" if content.credit_limit_nano is None else typed_amount(content.credit_limit_nano),
        "discount": Decimal(content.discount_basis_points) / 100 if content.discount_basis_points else None,
        "move": "keep",
    }


class SelectionForm(forms.Form):
    """Who is to get a version: one organization by its slug, or all that a search and a template in use leave."""

    organization = forms.SlugField(
        required=False, max_length=60, label=_("One organization"), help_text=_("Its short name.")
    )
    q = forms.CharField(
        required=False,
        max_length=100,
        label=_("Or all that fit"),
        help_text=_("Part of a name, a short name or a member's address. Empty: all."),
    )
    uses = forms.ChoiceField(required=False, label=_("And that use"))

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        choice = self.fields["uses"]
        assert isinstance(choice, forms.ChoiceField)
        templates = LimitTemplate.objects.order_by("name").values_list("id", "name")
        choice.choices = [
            ("", _("Any template or none")),
            (WITHOUT, _("No template")),
            *((str(number), name) for number, name in templates),
        ]

    def clean_organization(self) -> Organization | None:
        slug = self.cleaned_data["organization"]
        if not slug:
            return None
        found = organization_by_slug(slug)
        if found is None:
            raise ValidationError(_("There is no organization '%(slug)s'.") % {"slug": slug})
        return found


class ApplyForm(SelectionForm):
    """`version` is the one whose effect was looked at."""

    version = forms.IntegerField(widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=300, validators=[refuse_invisible], help_text=_("Kept in the audit log of each organization.")
    )


class RetirementForm(forms.Form):
    reason = forms.CharField(max_length=300, validators=[refuse_invisible], help_text=_("Kept in the audit log."))


class WithdrawalForm(forms.Form):
    reason = forms.CharField(
        max_length=300, validators=[refuse_invisible], help_text=_("The organization sees it in its audit log.")
    )
