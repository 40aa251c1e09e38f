"""The keys of an organization: list, create (the secret is shown once), revoke."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal import access
from portal.api_keys import selectors, services
from portal.api_keys.forms import ApiKeyForm
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization
from portal.pages import member_page

PAGE_SIZE = 50


@login_required
def api_keys(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    return member_page(request, member, "api_keys", "portal/api_keys/list.html", _context(request, member.organization))


def _context(request: HttpRequest, organization: Organization) -> dict[str, Any]:
    projects = organizations.projects_of(organization)
    search = request.GET.get("q", "").strip()
    keys = selectors.client_keys(organization)
    if search:
        keys = keys.filter(name__icontains=search)
    return {
        "page": Paginator(keys, PAGE_SIZE).get_page(request.GET.get("page")),
        "search": search,
        "form": ApiKeyForm(projects=projects),
        "has_projects": len(projects) > 1,
        "now": timezone.now(),
        "is_new_dialog_open": request.GET.get("new") == "1",
    }


@login_required
@never_cache
@require_POST
def create(request: HttpRequest, slug: str) -> HttpResponse:
    """Answers with the page that shows the secret; it is nowhere else, and a reload of it makes no second key."""
    member = access.member_for(request.user, slug)
    form = ApiKeyForm(request.POST, projects=organizations.projects_of(member.organization))
    if not form.is_valid():
        context = _context(request, member.organization) | {"form": form, "is_new_dialog_open": True}
        return member_page(request, member, "api_keys", "portal/api_keys/list.html", context, status=400)
    issued = services.issue(
        project=form.cleaned_data["project"],
        name=form.cleaned_data["name"],
        actor=member.user,
        expires_at=form.expires_at(),
    )
    context = _context(request, member.organization) | {"issued": issued}
    return member_page(request, member, "api_keys", "portal/api_keys/list.html", context)


@login_required
@require_POST
def revoke(request: HttpRequest, slug: str, api_key_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug)
    api_key = access.api_key_for(request.user, slug, api_key_id)
    services.revoke(api_key=api_key, actor=member.user)
    messages.success(request, f"The key {api_key.name} is revoked; calls with it are refused from now on.")
    return redirect("portal:api_keys", slug)
