"""The API keys of an organization: list, create, change, rotate, revoke. A secret is shown in one answer only."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal import access
from portal.api_keys import selectors, services
from portal.api_keys.forms import ApiKeyForm, ChangeKeyForm, RotateForm
from portal.api_keys.models import ApiKey
from portal.billing_pages import usage_charts
from portal.catalog.selectors import published_models
from portal.errors import PortalError
from portal.home.snippets import first_call
from portal.organizations import selectors as organizations
from portal.organizations.models import Member
from portal.pages import member_page
from portal.permissions import Permission
from portal.quotas.models import QuotaKind, Window
from portal.quotas.selectors import quotas_of_key
from portal.quotas.services import change_quota
from portal.quotas.use import uses_of

PAGE_SIZE = 50


@login_required
def api_keys(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    return member_page(request, member, "api_keys", "portal/api_keys/list.html", _context(request, member))


def _form(member: Member, data: Any = None) -> ApiKeyForm:
    return ApiKeyForm(
        data,
        projects=organizations.active_projects_of(member.organization),
        may_limit=member.may(Permission.MANAGE_LIMITS),
        models=published_models(),
    )


def _context(request: HttpRequest, member: Member) -> dict[str, Any]:
    form = _form(member)
    search = request.GET.get("q", "").strip()
    keys = selectors.client_keys(member.organization)
    if search:
        keys = keys.filter(name__icontains=search)
    return {
        "page": Paginator(keys, PAGE_SIZE).get_page(request.GET.get("page")),
        "search": search,
        "form": form,
        "has_projects": not form.fields["project"].widget.is_hidden,
        "now": timezone.now(),
        "is_new_dialog_open": request.GET.get("new") == "1",
    }


@login_required
@never_cache
@require_POST
def create(request: HttpRequest, slug: str) -> HttpResponse:
    """Answers with the page that shows the secret; it is nowhere else, and a reload of it makes no second key."""
    member = access.member_for(request.user, slug, Permission.MANAGE_KEYS)
    form = _form(member, request.POST)
    if form.is_valid():
        try:
            issued = services.issue(
                project=form.cleaned_data["project"],
                name=form.cleaned_data["name"],
                actor=member.user,
                expires_at=form.expires_at(),
                rules=form.rules(),
            )
        except PortalError as error:
            form.add_error("name", str(error))
        else:
            if budget_nano := form.cleaned_data.get("budget"):
                change_quota(
                    organization=member.organization,
                    api_key=issued.api_key,
                    kind=QuotaKind.SPEND,
                    window=Window.MONTH,
                    limit=budget_nano,
                    actor=member.user,
                    reason="Budget of a new key",
                )
            models = issued.api_key.allowed_models or [model.name for model in published_models()[:1]]
            context = _context(request, member) | {
                "issued": issued,
                "first_call": first_call(models[0], issued.secret) if models else "",
            }
            return member_page(request, member, "api_keys", "portal/api_keys/list.html", context)
    context = _context(request, member) | {"form": form, "is_new_dialog_open": True}
    return member_page(request, member, "api_keys", "portal/api_keys/list.html", context, status=400)


@login_required
def api_key(request: HttpRequest, slug: str, api_key_id: int) -> HttpResponse:
    """One key: its rules, its secrets, and what can be done with it."""
    member = access.member_for(
        request.user, slug, Permission.MANAGE_KEYS if request.method == "POST" else Permission.VIEW
    )
    found = access.api_key_for(request.user, slug, api_key_id)
    form = _change_form(member, found, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.change(
                api_key=found,
                name=form.cleaned_data["name"],
                expires_at=form.expires_at(),
                rules=form.rules(),
                actor=member.user,
            )
        except PortalError as error:
            form.add_error("name", str(error))
        else:
            messages.success(request, _("The key is changed; the gateways follow within seconds."))
            return redirect("portal:api_key", slug, api_key_id)
    return _key_page(request, member, found, form=form)


def _change_form(member: Member, api_key: ApiKey, data: Any = None) -> ChangeKeyForm:
    return ChangeKeyForm(data, api_key=api_key, organization=member.organization, models=published_models())


def _key_page(request: HttpRequest, member: Member, api_key: ApiKey, **more: Any) -> HttpResponse:
    now = timezone.now()
    form = more.get("form") or _change_form(member, api_key)
    context = {
        "key": api_key,
        "is_active": api_key.revoked_at is None and not api_key.is_expired(now),
        "form": form,
        "rotate_form": RotateForm(),
        "retired": selectors.retired_secrets(api_key),
        "uses": uses_of(
            member.organization,
            quotas_of_key(api_key),
            cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT,
        ),
        "chart": usage_charts.card_of_any_period(only=urlencode({"api_key": api_key.id})),
        "now": now,
    }
    status = 400 if form.errors else 200
    return member_page(request, member, "api_keys", "portal/api_keys/key.html", context | more, status=status)


@login_required
@never_cache
@require_POST
def rotate(request: HttpRequest, slug: str, api_key_id: int) -> HttpResponse:
    """Answers with the page that shows the new secret."""
    member = access.member_for(request.user, slug, Permission.MANAGE_KEYS)
    found = access.api_key_for(request.user, slug, api_key_id)
    form = RotateForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Choose when the old secret ends."))
        return redirect("portal:api_key", slug, api_key_id)
    try:
        issued = services.rotate(api_key=found, overlap=form.duration(), actor=member.user)
    except PortalError as error:
        messages.error(request, str(error))
        return redirect("portal:api_key", slug, api_key_id)
    found.refresh_from_db()
    return _key_page(request, member, found, issued=issued)


@login_required
@require_POST
def end_retired(request: HttpRequest, slug: str, api_key_id: int, retired_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_KEYS)
    found = access.api_key_for(request.user, slug, api_key_id)
    retired = next((each for each in selectors.retired_secrets(found) if each.id == retired_id), None)
    if retired is None:
        raise Http404("No such secret.")
    services.end_retired(api_key=found, retired=retired, actor=member.user)
    messages.success(request, _("The secret %(prefix)s… is refused from now on.") % {"prefix": retired.prefix})
    return redirect("portal:api_key", slug, api_key_id)


@login_required
@require_POST
def revoke(request: HttpRequest, slug: str, api_key_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_KEYS)
    found = access.api_key_for(request.user, slug, api_key_id)
    services.revoke(api_key=found, actor=member.user)
    messages.success(
        request, _("The key %(name)s is revoked; calls with it are refused from now on.") % {"name": found.name}
    )
    return redirect("portal:api_keys", slug)
