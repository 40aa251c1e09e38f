"""The operator's page about operator keys: list, create (the secret is shown once), revoke."""

from __future__ import annotations

from typing import Any

from allauth.mfa.utils import is_mfa_enabled
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal import access
from portal.api_keys import operator_keys
from portal.api_keys.forms import OperatorKeyForm
from portal.errors import PortalError
from portal.operator import rows
from portal.pages import operator_page

# Older ones are in the management API and in the audit log.
SHOWN = 200


def _page(request: HttpRequest, form: OperatorKeyForm, **more: Any) -> HttpResponse:
    actor = access.require_operator(request.user)
    context = {
        "keys": operator_keys.all_keys()[:SHOWN],
        "form": form,
        "has_two_factor": is_mfa_enabled(actor),
        "now": timezone.now(),
    }
    return operator_page(
        request, "operator_keys", "portal/operator/keys.html", context | more, status=400 if form.errors else 200
    )


@login_required
@never_cache
def keys(request: HttpRequest) -> HttpResponse:
    """A POST creates one, and answers with the page that shows its secret."""
    actor = access.require_operator(request.user)
    form = OperatorKeyForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            issued = operator_keys.issue(
                maker=actor,
                name=form.cleaned_data["name"],
                may_change=form.cleaned_data["may_change"],
                expires_at=form.expires_at(),
                networks=form.cleaned_data["networks"],
            )
        except PortalError as error:
            form.add_error("name", str(error))
        else:
            return _page(request, OperatorKeyForm(), issued=issued)
    return _page(request, form)


@login_required
@require_POST
def revoke(request: HttpRequest, operator_key_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    key = rows.operator_key(operator_key_id)
    operator_keys.revoke(key=key, actor=actor)
    messages.success(request, _("The operator key %(name)s is revoked.") % {"name": key.name})
    return redirect("portal:operator_keys")
