"""The playground: the page itself. Its calls go to the gateway at /portal-api/chat/completions."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.csrf import ensure_csrf_cookie

from billing.pricing import selectors as pricing
from portal import access
from portal.catalog import selectors as catalog
from portal.organizations import selectors as organizations
from portal.pages import member_page
from portal.permissions import Permission


@login_required
@ensure_csrf_cookie
def playground(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.USE_PLAYGROUND)
    models = catalog.published_models()
    now = timezone.now()
    prices = {model.name: pricing.current_price(model.name, now, member.organization_id) for model in models}
    context = {
        "models": models,
        "projects": organizations.projects_of(member.organization),
        "setup": {
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
        },
    }
    return member_page(request, member, "playground", "portal/playground/playground.html", context)
