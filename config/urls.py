"""Joins the portal's pages, the management API, sign-in and the support admin."""

from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import include, path

# The admin's own form would pass by the second factor and the sign-in limits.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

urlpatterns = [
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.urls")),
    path("", include("api.urls")),
    path("", include("portal.urls")),
]
# Outside of any view of theirs, programs are told in JSON and people on a page.
handler400 = "api.rest.handlers.bad_request"
handler403 = "portal.home.views.forbidden"
handler404 = "api.rest.handlers.not_found"
handler500 = "api.rest.handlers.server_error"
