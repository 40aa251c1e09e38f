"""Webhooks of an organization, and the log of what was sent to them."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal import access
from portal.alerts import selectors
from portal.alerts import webhooks as services
from portal.alerts.delivery import BACKOFF
from portal.alerts.forms import ChangeWebhookForm, WebhookForm
from portal.alerts.kinds import DeliveryState, RuleKind
from portal.alerts.models import WebhookEndpoint
from portal.alerts.wording import failure_of
from portal.errors import PortalError
from portal.gone_rows import told_when_gone
from portal.organizations.models import Member
from portal.pages import member_page
from portal.permissions import Permission

WEBHOOK_GONE = _("This webhook is gone already: somebody removed it meanwhile.")


def _page(
    request: HttpRequest,
    member: Member,
    form: WebhookForm,
    refused: tuple[int, ChangeWebhookForm] | None = None,
    **more: Any,
) -> HttpResponse:
    """`refused` is a change that was not made: the id of its webhook and the form with its errors."""
    changes = dict([refused] if refused else [])
    endpoints = selectors.endpoints_of(member.organization)
    context = {
        "form": form,
        "events": [*((f"alert.{kind}", kind.label) for kind in RuleKind), ("webhook.test", _("A test"))],
        "endpoints": [(each, changes.get(each.id) or _change_form(each)) for each in endpoints],
    } | more
    status = 400 if form.errors or refused else 200
    return member_page(request, member, "alerts", "portal/alerts/webhooks.html", context, status=status)


def _change_form(endpoint: WebhookEndpoint) -> ChangeWebhookForm:
    initial = {"url": endpoint.url, "description": endpoint.description, "is_enabled": endpoint.is_enabled}
    return ChangeWebhookForm(initial=initial, auto_id=f"id_{endpoint.id}_%s")


@login_required
@never_cache
def webhooks(request: HttpRequest, slug: str) -> HttpResponse:
    """A POST adds one, and answers with the page that shows its secret."""
    need = Permission.MANAGE_ALERTS if request.method == "POST" else Permission.VIEW_ALERTS
    member = access.member_for(request.user, slug, need)
    form = WebhookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            issued = services.add(
                organization=member.organization,
                url=form.cleaned_data["url"],
                description=form.cleaned_data["description"],
                actor=member.user,
            )
        except PortalError as error:
            form.add_error("url", str(error))
        else:
            return _page(request, member, WebhookForm(), issued=issued)
    return _page(request, member, form)


@login_required
@require_POST
@told_when_gone("webhooks", WEBHOOK_GONE)
def change(request: HttpRequest, slug: str, webhook_id: int) -> HttpResponse:
    """What is refused is said at its field, in the dialog that opens again."""
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    endpoint = access.webhook_for(request.user, slug, webhook_id, Permission.MANAGE_ALERTS)
    form = ChangeWebhookForm(request.POST, auto_id=f"id_{webhook_id}_%s")
    if form.is_valid():
        try:
            services.change(endpoint=endpoint, actor=member.user, **form.cleaned_data)
        except PortalError as error:
            form.add_error("url", str(error))
        else:
            messages.success(request, _("The webhook is changed."))
            return redirect("portal:webhooks", slug)
    return _page(request, member, WebhookForm(), refused=(endpoint.id, form))


@login_required
@never_cache
@require_POST
@told_when_gone("webhooks", WEBHOOK_GONE)
def rotate(request: HttpRequest, slug: str, webhook_id: int) -> HttpResponse:
    """Answers with the page that shows the new secret."""
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    endpoint = access.webhook_for(request.user, slug, webhook_id, Permission.MANAGE_ALERTS)
    issued = services.rotate_secret(endpoint=endpoint, actor=member.user)
    return _page(request, member, WebhookForm(), issued=issued)


@login_required
@require_POST
@told_when_gone("webhooks", WEBHOOK_GONE)
def test(request: HttpRequest, slug: str, webhook_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    endpoint = access.webhook_for(request.user, slug, webhook_id, Permission.MANAGE_ALERTS)
    delivery = services.send_test(endpoint=endpoint, actor=member.user)
    messages.success(request, _("A test is on its way; what becomes of it appears below."))
    return redirect("portal:delivery", slug, delivery.id)


@login_required
@require_POST
@told_when_gone("webhooks", WEBHOOK_GONE)
def remove(request: HttpRequest, slug: str, webhook_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    endpoint = access.webhook_for(request.user, slug, webhook_id, Permission.MANAGE_ALERTS)
    services.remove(endpoint=endpoint, actor=member.user)
    messages.success(request, _("The webhook is removed."))
    return redirect("portal:webhooks", slug)


@login_required
def deliveries(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.VIEW_ALERTS)
    webhook, state, before = (request.GET.get(name, "") for name in ("webhook", "state", "before"))
    filters = selectors.DeliveryFilters(
        webhook_id=int(webhook) if webhook.isdigit() else None,
        state=state if state in DeliveryState.values else "",
    )
    rows, following = selectors.deliveries_page(
        member.organization, filters, after=int(before) if before.isdigit() else None
    )
    context = {
        "rows": [(row, failure_of(row)) for row in rows],
        "is_filtered": bool(filters.webhook_id or filters.state),
        "next": following,
        "before": before,
        "filters": filters,
        "states": DeliveryState.choices,
        "endpoints": selectors.endpoints_of(member.organization),
    }
    return member_page(request, member, "alerts", "portal/alerts/deliveries.html", context)


@login_required
def delivery(request: HttpRequest, slug: str, delivery_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.VIEW_ALERTS)
    found = access.delivery_for(request.user, slug, delivery_id, Permission.VIEW_ALERTS)
    context = {
        "delivery": found,
        "failure": failure_of(found),
        "body": json.dumps(json.loads(found.body), indent=2, ensure_ascii=False),
        "most_attempts": len(BACKOFF) + 1,
    }
    is_part = request.headers.get("HX-Request") and not request.headers.get("HX-Boosted")
    template = "portal/alerts/_delivery.html" if is_part else "portal/alerts/delivery.html"
    return member_page(request, member, "alerts", template, context)


@login_required
@require_POST
def resend(request: HttpRequest, slug: str, delivery_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    found = access.delivery_for(request.user, slug, delivery_id, Permission.MANAGE_ALERTS)
    try:
        services.resend(delivery=found, actor=member.user)
    except PortalError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("It is sent again; what becomes of it appears below."))
    return redirect("portal:delivery", slug, delivery_id)
