"""Joins the portal's pages, the management API, sign-in and the support admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.urls")),
    path("", include("portal.urls")),
]
handler403 = "portal.home.views.forbidden"
handler404 = "portal.home.views.not_found"
