"""The front page, the dashboard, the quick start and the error pages."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.pricing import selectors as pricing
from billing.usage import selectors as usage
from portal import access
from portal.api_keys import selectors as api_keys
from portal.billing_pages import periods, usage_charts
from portal.catalog import selectors as catalog
from portal.home.snippets import make_snippets
from portal.mailbox.access import is_mailbox_open
from portal.organizations import selectors as organizations
from portal.pages import member_page
from portal.users.requests import signed_in


def front(request: HttpRequest) -> HttpResponse:
    """What the service is, for someone who is not signed in."""
    if request.user.is_authenticated:
        return redirect("portal:home")
    models = catalog.published_models()
    model = models[0].name if models else ""
    price = pricing.current_price(model, timezone.now()) if model else None
    snippet = make_snippets(model or "your-model")[1]
    return render(request, "portal/home/front.html", {"price": price, "snippet": snippet, "model": model})


@login_required
def home(request: HttpRequest) -> HttpResponse:
    """To the organization that was joined first; who has none is asked to make one."""
    memberships = organizations.memberships_of(signed_in(request))
    if memberships:
        return redirect("portal:dashboard", memberships[0].organization.slug)
    return redirect("portal:operator_home" if signed_in(request).is_staff else "portal:organization_new")


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    is_done: bool
    action: str
    url_name: str


@login_required
def dashboard(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    organization_id = member.organization_id
    latest = usage.usage_page(organization_id, limit=6).rows
    has_key = api_keys.client_keys(member.organization).exists()
    steps = [
        Step(_("Prove your e-mail address"), _("Done: this is how you sign in."), True, "", ""),
        Step(
            _("Create an API key"),
            _("It is shown once; keep it like a password."),
            has_key,
            _("Create a key"),
            "api_keys",
        ),
        Step(
            _("Make your first call"),
            _("Paste a snippet, or try the playground."),
            bool(latest),
            _("Open the quick start"),
            "quickstart",
        ),
        Step(
            _("See what it cost"),
            _("Every call is listed with its tokens, timings and cost."),
            bool(latest),
            _("Open usage"),
            "usage",
        ),
    ]
    today = periods.today()
    context = {
        "steps": steps if not all(step.is_done for step in steps) else [],
        "today": periods.totals(usage.summary(organization_id, today.start, today.end)),
        "month": periods.totals(usage.summary(organization_id, *periods.this_month())),
        "latest": latest,
        "key_names": api_keys.names_by_id(organization_id, (row.api_key_id for row in latest)),
        "snippets": make_snippets(_first_model()),
        "chart": usage_charts.card_of_any_period(),
    }
    return member_page(request, member, "dashboard", "portal/home/dashboard.html", context)


def _first_model() -> str:
    models = catalog.published_models()
    return models[0].name if models else "your-model"


@login_required
def quickstart(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    models = catalog.published_models()
    model = request.GET.get("model", "")
    if model not in {each.name for each in models}:
        model = _first_model()
    context = {
        "snippets": make_snippets(model),
        "models": models,
        "model": model,
        "has_key": api_keys.client_keys(member.organization).exists(),
    }
    return member_page(request, member, "quickstart", "portal/home/quickstart.html", context)


def design(request: HttpRequest) -> HttpResponse:
    """Every part of the design on one page; on a development machine only."""
    if not (settings.DEBUG or is_mailbox_open(request)):
        raise Http404
    return render(request, "portal/home/design.html")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "404.html", status=404)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "403.html", {"reason": str(exception)}, status=403)
