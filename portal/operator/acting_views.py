"""Begin and end acting for an organization."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from portal import access
from portal.operator import acting
from portal.operator.forms import ActingForm
from portal.organizations.roles import Role
from portal.organizations.selectors import organization_by_slug


@login_required
@require_POST
def begin(request: HttpRequest, slug: str) -> HttpResponse:
    actor = access.require_operator(request.user)
    organization = organization_by_slug(slug)
    if organization is None:
        raise Http404("No such organization.")
    form = ActingForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Say why you act for this organization; it is written to its audit log."))
        return redirect("portal:operator_organization", slug)
    acting.start(
        session=request.session,
        organization=organization,
        role=Role(form.cleaned_data["role"]),
        actor=actor,
        reason=form.cleaned_data["reason"],
    )
    return redirect("portal:dashboard", slug)


@login_required
@require_POST
def end(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    slug = actor.acting.slug if actor.acting else None
    acting.stop(session=request.session, actor=actor)
    return redirect("portal:operator_organization", slug) if slug else redirect("portal:operator_home")
