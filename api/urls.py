"""What Django serves of the API: management, the OpenAPI document, webhooks. Inference is in api/routing.py."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.views import SpectacularJSONAPIView

from api.rest import views
from api.webhooks.stripe import stripe_webhook

app_name = "api"

urlpatterns = [
    path("api/models", views.Models.as_view(), name="models"),
    path("api/organizations/<slug:slug>/keys", views.ApiKeys.as_view(), name="keys"),
    path("api/organizations/<slug:slug>/keys/<int:api_key_id>", views.ApiKeyDetail.as_view(), name="key"),
    path("api/organizations/<slug:slug>/usage", views.Usage.as_view(), name="usage"),
    path("v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path("webhooks/stripe", stripe_webhook, name="stripe_webhook"),
]
