"""The management keys of an organization: list, create (the secret is shown once), revoke."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal import access
from portal.api_keys import management, selectors
from portal.api_keys.forms import ManagementKeyForm
from portal.errors import PortalError
from portal.organizations.models import Member
from portal.organizations.roles import Role
from portal.pages import member_page
from portal.permissions import Permission, role_choices

# Revoked ones beyond these are in the audit log.
SHOWN = 200


def _page(request: HttpRequest, member: Member, form: ManagementKeyForm, **more: Any) -> HttpResponse:
    context = {
        "keys": selectors.management_keys(member.organization)[:SHOWN],
        "form": form,
        "roles": role_choices(member.role_in_force),
        "now": timezone.now(),
    }
    return member_page(
        request,
        member,
        "management_keys",
        "portal/api_keys/management.html",
        context | more,
        status=400 if form.errors else 200,
    )


@login_required
@never_cache
def management_keys(request: HttpRequest, slug: str) -> HttpResponse:
    """A POST creates one, and answers with the page that shows its secret."""
    member = access.member_for(request.user, slug, Permission.MANAGE_MANAGEMENT_KEYS)
    form = ManagementKeyForm(request.POST or None, granter=member.role_in_force)
    if request.method == "POST" and form.is_valid():
        try:
            issued = management.issue(
                maker=member,
                name=form.cleaned_data["name"],
                role=Role(form.cleaned_data["role"]),
                expires_at=form.expires_at(),
                networks=form.cleaned_data["networks"],
            )
        except PortalError as error:
            form.add_error("name", str(error))
        else:
            return _page(request, member, ManagementKeyForm(granter=member.role_in_force), issued=issued)
    return _page(request, member, form)


@login_required
@require_POST
def revoke(request: HttpRequest, slug: str, key_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_MANAGEMENT_KEYS)
    key = access.management_key_for(request.user, slug, key_id, Permission.MANAGE_MANAGEMENT_KEYS)
    access.require_grant(member, key.role)
    management.revoke(key=key, actor=member.user)
    messages.success(request, _("The management key %(name)s is revoked.") % {"name": key.name})
    return redirect("portal:management_keys", slug)
