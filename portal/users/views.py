"""The signed-in person's own account."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from portal.users.forms import ProfileForm
from portal.users.requests import signed_in


@login_required
def profile(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = ProfileForm(request.POST or None, instance=user)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, "Your name is saved.")
        return redirect("portal:profile")
    return render(request, "portal/users/profile.html", {"form": form}, status=400 if form.errors else 200)
