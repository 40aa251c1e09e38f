"""The limits page: what applies, how much is used, and the form that changes it."""

from __future__ import annotations

import json
from datetime import timedelta

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.ledger import selectors as ledger
from portal import access
from portal.amounts import typed_amount
from portal.api_keys import selectors as api_keys
from portal.catalog.selectors import published_models
from portal.gone_rows import told_when_gone
from portal.limit_templates.selectors import use_of
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization
from portal.pages import member_page
from portal.permissions import Permission
from portal.quotas import selectors, services
from portal.quotas.forms import QuotaForm
from portal.quotas.models import Quota, QuotaKind
from portal.quotas.refusals import refused_since
from portal.quotas.replay import replay_week
from portal.quotas.snapshot import new_limit
from portal.quotas.use import uses_of

# Keys offered in the form: the newest ones.
KEYS_OFFERED = 200
REFUSALS_SHOWN = timedelta(hours=24)


@login_required
def limits(request: HttpRequest, slug: str) -> HttpResponse:
    """Everyone sees the limits; admins change them."""
    member = access.member_for(
        request.user, slug, Permission.MANAGE_LIMITS if request.method == "POST" else Permission.VIEW
    )
    organization = member.organization
    form = _form(request, organization)
    if request.method == "POST" and form.is_valid():
        try:
            services.change_quota(organization=organization, actor=member.user, **form.cleaned_data["quota"])
        except services.QuotaAboveCeiling as error:
            form.add_error("amount", str(error))
        else:
            messages.success(request, _("The limit is set and applies to the next request."))
            return redirect("portal:limits", slug)
    uses = uses_of(organization, selectors.quotas_of(organization), cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT)
    context = {
        "form": form,
        "uses": [(use, _values(form, use.quota)) for use in uses],
        "shown": ",".join(str(use.quota.id) for use in uses),
        "refused": refused_since(organization.id, timezone.now() - REFUSALS_SHOWN),
        "template_use": use_of(organization),
        "can_change": member.may(Permission.MANAGE_LIMITS),
    }
    return member_page(
        request, member, "limits", "portal/quotas/limits.html", context, status=400 if form.errors else 200
    )


def _values(form: QuotaForm, quota: Quota) -> str:
    """What the form says of this limit, as JSON, for the dialog that changes it; empty when it does not offer that."""
    scopes = {"project": quota.project_id, "api_key": quota.api_key_id, "member": quota.member_id}
    scope = next((f"{kind}:{number}" for kind, number in scopes.items() if number), "")
    values = {
        "scope": scope,
        "what": f"{quota.kind}:{quota.window}",
        "amount": typed_amount(quota.limit) if quota.kind == QuotaKind.SPEND else str(quota.limit),
        "model": quota.model,
        "mode": quota.mode,
    }
    is_offered = all(form.fields[name].valid_value(values[name]) for name in ("scope", "what", "model") if values[name])  # type: ignore[attr-defined]
    return json.dumps(values) if is_offered else ""


def _form(request: HttpRequest, organization: Organization) -> QuotaForm:
    return QuotaForm(
        request.POST or None,
        name=organization.name,
        projects=organizations.projects_of(organization),
        api_keys=list(api_keys.client_keys(organization).filter(revoked_at=None)[:KEYS_OFFERED]),
        members=organizations.members_of(organization),
        models=[model.name for model in published_models()],
    )


@login_required
@require_POST
def try_out(request: HttpRequest, slug: str) -> HttpResponse:
    """What the limit in the form would have refused last week, as a part of the page; nothing is changed."""
    organization = access.member_for(request.user, slug, Permission.MANAGE_LIMITS).organization
    form = _form(request, organization)
    context: dict[str, object] = {"form": form}
    if form.is_valid():
        limit = new_limit(organization, **form.cleaned_data["quota"])
        context["replay"] = replay_week(organization, limit, cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT)
    return render(request, "portal/quotas/_replay.html", context)


@login_required
def gauges(request: HttpRequest, slug: str) -> HttpResponse:
    """What is used now, as parts that take the places of those on the page; asked every few seconds.

    `shown` are the limits on the page: that there are others by now is said there.
    """
    member = access.member_for(request.user, slug)
    organization = member.organization
    uses = uses_of(organization, selectors.quotas_of(organization), cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT)
    shown = set(filter(None, request.GET.get("shown", "").split(",")))
    context = {
        "uses": [use for use in uses if str(use.quota.id) in shown],
        "is_changed": shown != {str(use.quota.id) for use in uses},
        "organization": organization,
        "currency": ledger.balance(organization.id).currency,
    }
    return render(request, "portal/quotas/_gauges.html", context)


@login_required
@require_POST
@told_when_gone("limits", _("This limit is gone already: somebody removed it meanwhile."))
def remove(request: HttpRequest, slug: str, quota_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_LIMITS)
    quota = next((q for q in selectors.quotas_of(member.organization) if q.id == quota_id), None)
    if quota is None:
        raise access.RowGone("No such limit.")
    try:
        services.remove_quota(quota=quota, actor=member.user)
    except services.QuotaImposed as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("The limit is removed."))
    return redirect("portal:limits", slug)
