"""The signed-in person's own account."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from portal.organizations.selectors import memberships_of
from portal.users.forms import ProfileForm
from portal.users.requests import signed_in
from portal.users.sessions import browsers_of, end


@login_required
def profile(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = ProfileForm(request.POST or None, instance=user)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, _("Your account is saved."))
        return redirect("portal:profile")
    context = {"form": form, "memberships": memberships_of(user)}
    return render(request, "portal/users/profile.html", context, status=400 if form.errors else 200)


@login_required
def sessions(request: HttpRequest) -> HttpResponse:
    browsers = browsers_of(signed_in(request), request.session.session_key)
    return render(request, "portal/users/sessions.html", {"browsers": browsers})


@login_required
@require_POST
def end_session(request: HttpRequest, session_id: int) -> HttpResponse:
    if not end(user=signed_in(request), session_ids=[session_id]):
        raise Http404("No such session.")
    messages.success(request, _("That browser is signed out."))
    return redirect("portal:sessions")


@login_required
@require_POST
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    others = [each.session.id for each in browsers_of(user, request.session.session_key) if not each.is_current]
    count = end(user=user, session_ids=others)
    text = ngettext("%(count)d other browser is signed out.", "%(count)d other browsers are signed out.", count)
    messages.success(request, text % {"count": count})
    return redirect("portal:sessions")
