"""The limits page: what applies, how much is used, and the form that changes it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
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
from portal.quotas.use import QuotaUse, uses_of

# Keys offered in the form: the newest ones.
KEYS_OFFERED = 200
# Of limits of keys; with more they have a list of their own, with pages.
KEY_LIMITS_SHOWN = 50
REFUSALS_SHOWN = timedelta(hours=24)


@login_required
def limits(request: HttpRequest, slug: str) -> HttpResponse:
    """Everyone sees the limits; admins change them."""
    member = access.member_for(
        request.user, slug, Permission.MANAGE_LIMITS if request.method == "POST" else Permission.VIEW
    )
    organization = member.organization
    shown = _listing(request, organization)
    form = _form(request, organization, shown.all)
    if request.method == "POST" and form.is_valid():
        try:
            services.change_quota(organization=organization, actor=member.user, **form.cleaned_data["quota"])
        except services.QuotaAboveCeiling as error:
            form.add_error("amount", str(error))
        else:
            messages.success(request, _("The limit is set and applies to the next request."))
            return redirect(_address(slug, shown))
    context = {
        "form": form,
        "uses": _rows(organization, form, shown.quotas),
        "key_uses": _rows(organization, form, shown.of_keys),
        "listing": shown,
        "shown": ",".join(str(quota.id) for quota in shown.all),
        "refused": refused_since(organization.id, timezone.now() - REFUSALS_SHOWN),
        "template_use": use_of(organization),
        "can_change": member.may(Permission.MANAGE_LIMITS),
    }
    return member_page(
        request, member, "limits", "portal/quotas/limits.html", context, status=400 if form.errors else 200
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """The limits on the page: all of them, or all but those of keys, and one page of these, newest first."""

    quotas: list[Quota]
    of_keys: list[Quota] = field(default_factory=list)
    is_paged: bool = False
    search: str = ""
    after: int | None = None
    next: int | None = None

    @property
    def all(self) -> list[Quota]:
        return self.quotas + self.of_keys


def _listing(request: HttpRequest, organization: Organization) -> Listing:
    """What `q` and `after` in the address ask for. Two queries."""
    search = request.GET.get("q", "").strip()
    after = request.GET.get("after", "")
    page = selectors.limits_of_keys(
        organization, search=search, after=int(after) if _is_id(after) else None, limit=KEY_LIMITS_SHOWN
    )
    quotas = selectors.quotas_of(organization)
    if not (search or after or page.next):
        return Listing(list(quotas))
    others = list(quotas.filter(api_key=None))
    return Listing(others, page.rows, True, search, int(after) if _is_id(after) else None, page.next)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _address(slug: str, listing: Listing) -> str:
    """Of the page that shows this listing."""
    asked = {name: value for name, value in (("q", listing.search), ("after", listing.after)) if value}
    return reverse("portal:limits", args=[slug]) + (f"?{urlencode(asked)}" if asked else "")


def _rows(organization: Organization, form: QuotaForm, quotas: list[Quota]) -> list[tuple[QuotaUse, str]]:
    uses = uses_of(organization, quotas, cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT)
    return [(use, _values(form, use.quota)) for use in uses]


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


def _form(request: HttpRequest, organization: Organization, shown: Collection[Quota] = ()) -> QuotaForm:
    """Offers the newest keys, those whose limits are shown, and the one that the form names."""
    keys = api_keys.client_keys(organization).filter(revoked_at=None)
    offered = list(keys[:KEYS_OFFERED])
    _kind, _separator, named = request.POST.get("scope", "").partition("api_key:")
    wanted = {quota.api_key_id for quota in shown if quota.api_key_id} | ({int(named)} if _is_id(named) else set())
    if others := wanted - {api_key.id for api_key in offered}:
        offered += keys.filter(id__in=others)
    return QuotaForm(
        request.POST or None,
        name=organization.name,
        projects=organizations.projects_of(organization),
        api_keys=offered,
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

    `shown` are the limits on the page, `q` and `after` what it was asked for: that it has others by now is said there.
    """
    member = access.member_for(request.user, slug)
    organization = member.organization
    listing = _listing(request, organization)
    shown = set(filter(None, request.GET.get("shown", "").split(",")))
    quotas = [quota for quota in listing.all if str(quota.id) in shown]
    context = {
        "uses": uses_of(organization, quotas, cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT),
        "is_changed": shown != {str(quota.id) for quota in listing.all},
        "address": _address(slug, listing),
        "currency": ledger.balance(organization.id).currency,
    }
    return render(request, "portal/quotas/_gauges.html", context)


@login_required
@require_POST
@told_when_gone("limits", _("This limit is gone already: somebody removed it meanwhile."))
def remove(request: HttpRequest, slug: str, quota_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_LIMITS)
    quota = selectors.quotas_of(member.organization).filter(id=quota_id).first()
    if quota is None:
        raise access.RowGone("No such limit.")
    try:
        services.remove_quota(quota=quota, actor=member.user)
    except services.QuotaImposed as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("The limit is removed."))
    return redirect("portal:limits", slug)
