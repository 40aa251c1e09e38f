"""The front page, the dashboard, the quick start and the error pages."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone

from billing.ledger import selectors as ledger
from billing.usage import selectors as usage
from portal import access
from portal.api_keys import selectors as api_keys
from portal.billing_pages import periods, usage_charts
from portal.billing_pages.figures import days_left, figures
from portal.catalog import selectors as catalog
from portal.catalog.offers import offers
from portal.home.agents import make_agents
from portal.home.design import icons, tokens
from portal.home.onboarding import CALLS_OF_A_BEGINNER, checklist
from portal.home.snippets import GUIDES, make_snippets
from portal.mailbox.access import is_mailbox_open
from portal.organizations import selectors as organizations
from portal.pages import member_page
from portal.quotas import selectors as quotas
from portal.quotas.refusals import refused_since
from portal.quotas.use import uses_of
from portal.users.requests import signed_in

# On the dashboard.
LIMITS_SHOWN = 4
SPENDERS_SHOWN = 5
REFUSALS_SHOWN = timedelta(hours=1)
# On the front page.
MODELS_SHOWN = 8


def front(request: HttpRequest) -> HttpResponse:
    """What the service is, for someone who is not signed in."""
    if request.user.is_authenticated:
        return redirect("portal:home")
    found = offers()
    snippet = make_snippets(found[0].model.name if found else "your-model")[1]
    context = {"offers": found[:MODELS_SHOWN], "snippet": snippet}
    return render(request, "portal/home/front.html", context)


@login_required
def home(request: HttpRequest) -> HttpResponse:
    """To the organization that was joined first; who has none is asked to make one."""
    memberships = organizations.memberships_of(signed_in(request))
    if memberships:
        return redirect("portal:dashboard", memberships[0].organization.slug)
    return redirect("portal:operator_home" if signed_in(request).is_staff else "portal:organization_new")


@login_required
def dashboard(request: HttpRequest, slug: str) -> HttpResponse:
    """The checklist of a new organization asks for itself alone, every few seconds."""
    member = access.member_for(request.user, slug)
    organization, organization_id = member.organization, member.organization_id
    latest = usage.usage_page(organization_id, limit=CALLS_OF_A_BEGINNER).rows
    onboarding = checklist(organization, latest)
    names = api_keys.names_by_id(organization_id, (row.api_key_id for row in latest))
    balance = ledger.balance(organization_id)
    context: dict[str, object] = {"onboarding": onboarding, "key_names": names, "organization": organization}
    if request.headers.get("HX-Request"):
        return render(
            request,
            "portal/home/_checklist.html",
            context | {"balance_nano": balance.available_nano, "currency": balance.currency},
        )
    today, month = periods.today(), periods.this_month()
    spenders = usage.costs(organization_id, *month, "api_key", limit=SPENDERS_SHOWN)
    labels = api_keys.names_by_id(organization_id, [int(key) for key in spenders if key])
    everywhere = quotas.quotas_of_everything(organization, LIMITS_SHOWN)
    context |= {
        "today": periods.totals(usage.summary(organization_id, *today)),
        "month": periods.totals(usage.summary(organization_id, *month)),
        "figures": figures(organization_id, today),
        "days_left": days_left(organization_id, balance.available_nano),
        "refused": refused_since(organization_id, timezone.now() - REFUSALS_SHOWN),
        "spenders": [
            (labels.get(int(key or 0), "–"), key, cost_nano) for key, cost_nano in spenders.items() if cost_nano
        ],
        "uses": uses_of(organization, everywhere, cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT),
        "latest": latest,
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
    shown = next((each for each in models if each.name == model), None)
    context = {
        "snippets": make_snippets(model),
        "guides": make_snippets(model, GUIDES),
        "agents": make_agents(shown),
        "models": models,
        "model": model,
        "has_key": api_keys.client_keys(member.organization).exists(),
    }
    return member_page(request, member, "quickstart", "portal/home/quickstart.html", context)


def design(request: HttpRequest) -> HttpResponse:
    """Every part of the design on one page; on a development machine only."""
    if not (settings.DEBUG or is_mailbox_open(request)):
        raise Http404
    return render(request, "portal/home/design.html", {"tokens": tokens(), "icons": icons()})


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "404.html", status=404)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return render(request, "403.html", {"reason": str(exception)}, status=403)
