"""The playground's page, and what is shared from it. Its calls go to the gateway at /portal-api/chat/completions."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_POST

from billing.pricing import selectors as pricing
from portal import access
from portal.catalog import selectors as catalog
from portal.gone_rows import told_when_gone
from portal.organizations import selectors as organizations
from portal.organizations.models import Member
from portal.pages import member_page
from portal.permissions import Permission
from portal.playground.models import SharedConversation
from portal.playground.services import InvalidConversation, share, unshare

SHARED_SHOWN = 20


@login_required
@ensure_csrf_cookie
def playground(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.USE_PLAYGROUND)
    return _page(request, member, None)


@login_required
@ensure_csrf_cookie
def shared(request: HttpRequest, slug: str, share_id: int) -> HttpResponse:
    """Every member may read it; who may use the playground goes on from there, in a copy of their own."""
    found = access.shared_conversation_for(request.user, slug, share_id)
    return _page(request, access.member_for(request.user, slug), found)


def _page(request: HttpRequest, member: Member, found: SharedConversation | None) -> HttpResponse:
    models = catalog.published_models()
    now = timezone.now()
    prices = {model.name: pricing.current_price(model.name, now, member.organization_id) for model in models}
    setup: dict[str, Any] = {
        "prices": {
            name: {
                "input": str(price.input_nano),
                "cached": str(price.input_nano if price.cached_input_nano is None else price.cached_input_nano),
                "output": str(price.output_nano),
                "currency": price.currency,
            }
            for name, price in prices.items()
            if price
        },
        "max_output": {model.name: model.max_output_tokens for model in models},
        "default_output": {model.name: model.default_max_output_tokens for model in models},
        "api_base_url": settings.API_BASE_URL,
        "root_url": settings.PUBLIC_URL,
        "credit_url": reverse("portal:billing", args=[member.organization.slug]),
        "conversation": found.content if found else None,
    }
    context = {
        "models": models,
        "projects": organizations.active_projects_of(member.organization),
        "setup": setup,
        "shared": found,
        "may_unshare": found is not None and _may_unshare(member, found),
        "others": SharedConversation.objects.filter(organization=member.organization)
        .select_related("shared_by")
        .order_by("-id")[:SHARED_SHOWN],
    }
    return member_page(request, member, "playground", "portal/playground/playground.html", context)


@login_required
@require_POST
def share_new(request: HttpRequest, slug: str) -> HttpResponse:
    """From the page's script: JSON in, the address of the shared conversation out."""
    member = access.member_for(request.user, slug, Permission.USE_PLAYGROUND)
    try:
        # A form has been read already, and is no conversation.
        body = request.body if request.content_type == "application/json" else b""
        made = share(organization=member.organization, body=body, actor=member.user)
    except InvalidConversation as error:
        return JsonResponse({"error": str(error)}, status=400)
    path = reverse("portal:playground_shared", args=[slug, made.id])
    return JsonResponse({"url": f"{settings.PUBLIC_URL}{path}"}, status=201)


@login_required
@require_POST
@told_when_gone("playground", _("The conversation is shared no longer: somebody ended that meanwhile."))
def share_end(request: HttpRequest, slug: str, share_id: int) -> HttpResponse:
    found = access.shared_conversation_for(request.user, slug, share_id, Permission.USE_PLAYGROUND)
    member = access.member_for(request.user, slug)
    if not _may_unshare(member, found):
        raise PermissionDenied(_("Only who shared the conversation, or an admin, can end that."))
    unshare(shared=found, actor=member.user)
    messages.success(request, _("The conversation is no longer shared."))
    return redirect("portal:playground", slug)


def _may_unshare(member: Member, found: SharedConversation) -> bool:
    return found.shared_by_id == member.user.id or member.may(Permission.MANAGE_SETTINGS)
