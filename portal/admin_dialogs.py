"""What the support admin asks before it acts: the forms of the portal's pages, in the admin's look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django_htmx.http import HttpResponseClientRedirect
from unfold.dataclasses import ActionDialog
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from billing.accounts import selectors as accounts
from portal.amounts import typed_amount
from portal.api_keys.models import ApiKey
from portal.catalog.selectors import published_models
from portal.operator.forms import CreditForm, SuspensionForm, TermsForm
from portal.plain_text import refuse_invisible
from portal.quotas.forms import QuotaForm

Method = TypeVar("Method", bound=Callable[..., HttpResponse])


class _Dialog(BaseDialogForm):  # type: ignore[misc]  # unfold has no types
    """First base of a dialog; the second is the form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            if isinstance(field.widget, forms.Select):
                field.widget = UnfoldAdminSelectWidget(choices=field.choices)
            elif isinstance(field.widget, forms.TextInput):
                field.widget = UnfoldAdminTextInputWidget(attrs=field.widget.attrs)
            # A widget says so for the form, and this one came after it.
            field.widget.is_required = field.required
        # Whoever opens the dialog by keyboard stands in it.
        shown = next(field for field in self.fields.values() if not field.widget.is_hidden)
        shown.widget.attrs["autofocus"] = True


class Credit(_Dialog, CreditForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["key"] = uuid4()


class Terms(_Dialog, TermsForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["credit_limit"] = typed_amount(accounts.account_of(int(self.object_id)).credit_limit_nano)


class Reason(_Dialog, SuspensionForm):
    """For acts that need nothing more."""


class OrganizationLimit(_Dialog, QuotaForm):
    """Of the organization as a whole. The page of limits offers every scope; here it is the row that is open."""

    reason = forms.CharField(
        max_length=500, validators=[refuse_invisible], help_text="The organization sees it in its audit log."
    )
    field_order = ("what", "amount", "model", "mode", "reason")
    scope_kind = ""

    def __init__(self, *args: Any, object_id: str, **kwargs: Any) -> None:
        models = [model.name for model in published_models()]
        keys = list(ApiKey.objects.filter(id=object_id)) if self.scope_kind == "api_key" else []
        super().__init__(
            *args, object_id=object_id, name="", projects=[], members=[], api_keys=keys, models=models, **kwargs
        )
        self.fields["scope"].widget = forms.HiddenInput()
        self.initial["scope"] = f"{self.scope_kind}:{object_id}" if self.scope_kind else ""


class KeyLimit(OrganizationLimit):
    scope_kind = "api_key"


def asks(
    form_class: type[BaseDialogForm],
    button: str,
    *,
    icon: str,
    title: str,
    submit: str,
    description: str = "",
    is_severe: bool = False,
) -> Callable[[Method], Method]:
    """A button over a row's page whose dialog asks with this form; the method gets the form once it is valid."""
    asked = ActionDialog(title=title, description=description, form_class=form_class, form_submit_text=submit)
    variant = ActionVariant.DANGER if is_severe else ActionVariant.DEFAULT
    decorate: Callable[[Method], Method] = action(description=button, icon=icon, variant=variant, dialog=asked)
    return decorate


def refused(
    request: HttpRequest, form: BaseDialogForm, field: str | None, error: Exception, submit: str
) -> HttpResponse:
    """The dialog once more, with what the service refuses at its field."""
    form.add_error(field, str(error))
    return render(request, "unfold/helpers/dialog.html", {"dialog": {}, "form": form, "form_submit_text": submit})


def done(request: HttpRequest, address: str) -> HttpResponse:
    """Back to a page, which a dialog leaves as a whole."""
    return HttpResponseClientRedirect(address) if request.headers.get("HX-Request") else redirect(address)
