"""The support admin: to look things up, and to act through the same services as the portal's pages."""

from __future__ import annotations

from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt
from django.apps import apps
from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django_celery_beat.models import PeriodicTask
from unfold.admin import ModelAdmin

from portal import models as portal
from portal.api_keys import services as api_keys
from portal.catalog import services as catalog
from portal.organizations import services as organizations
from portal.users.requests import signed_in

# What libraries register writes past our services, and shows secrets: support looks at some of it, below.
for _app in ("auth", "account", "mfa", "usersessions", "socialaccount", "axes", "django_celery_beat"):
    for _model in apps.get_app_config(_app).get_models():
        if admin.site.is_registered(_model):
            admin.site.unregister(_model)


class ReadOnly(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Nothing is added, changed or deleted except by an action that calls a service."""

    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False


@admin.register(portal.Organization)
class OrganizationAdmin(ReadOnly):
    list_display = ("name", "slug", "time_zone", "suspended_at", "created_at")
    search_fields = ("name", "slug")
    actions = ("suspend", "resume")

    @admin.action(description="Suspend: calls are refused")
    def suspend(self, request: HttpRequest, queryset: QuerySet[portal.Organization]) -> None:
        self._set_suspended(request, queryset, True)

    @admin.action(description="Resume: calls are accepted again")
    def resume(self, request: HttpRequest, queryset: QuerySet[portal.Organization]) -> None:
        self._set_suspended(request, queryset, False)

    def _set_suspended(self, request: HttpRequest, queryset: QuerySet[portal.Organization], is_suspended: bool) -> None:
        for organization in queryset:
            organizations.set_suspended(
                organization=organization, is_suspended=is_suspended, actor=signed_in(request), reason="Support admin"
            )


@admin.register(portal.ApiKey)
class ApiKeyAdmin(ReadOnly):
    list_display = ("name", "prefix", "organization", "project", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("organization", "project")
    search_fields = ("name", "prefix", "organization__name")
    # A digest is of no use to support, and what is not shown cannot leak.
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description="Revoke: refused within seconds, cannot be undone")
    def revoke(self, request: HttpRequest, queryset: QuerySet[portal.ApiKey]) -> None:
        for api_key in queryset:
            api_keys.revoke(api_key=api_key, actor=signed_in(request))


class ThroughService(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Saved by the catalogue's service, so that the change is audited; never deleted, since usage refers to it."""

    def has_delete_permission(self, request: HttpRequest, obj: object | None = None) -> bool:
        return False


@admin.register(portal.Model)
class ModelAdminPage(ThroughService):
    list_display = ("name", "display_name", "context_tokens", "is_published")

    def get_readonly_fields(self, request: HttpRequest, obj: portal.Model | None = None) -> tuple[str, ...]:
        return ("name",) if obj else ()

    def save_model(self, request: HttpRequest, obj: portal.Model, form: Any, change: bool) -> None:
        catalog.save_model(model=obj, actor=signed_in(request))


@admin.register(portal.Deployment)
class DeploymentAdmin(ThroughService):
    list_display = ("model", "kind", "address", "weight", "is_enabled")
    list_select_related = ("model",)

    def save_model(self, request: HttpRequest, obj: portal.Deployment, form: Any, change: bool) -> None:
        catalog.save_deployment(deployment=obj, actor=signed_in(request))


def _register(model: type[models.Model], **options: Any) -> None:
    admin.site.register(model, type(f"{model.__name__}Admin", (ReadOnly,), options))


_register(
    portal.User,
    list_display=("email", "name", "is_staff", "is_active", "date_joined"),
    search_fields=("email", "name"),
    exclude=("password",),
)
_register(
    portal.Member,
    list_display=("user", "organization", "role", "joined_at"),
    list_select_related=("user", "organization"),
    search_fields=("user__email", "organization__name"),
)
_register(portal.Project, list_display=("name", "organization", "is_default"), list_select_related=("organization",))
_register(
    portal.Quota,
    list_display=("organization", "project", "api_key", "kind", "window", "limit", "changed_at"),
    list_select_related=("organization", "project", "api_key"),
)
_register(
    portal.AuditEvent,
    list_display=("created_at", "actor_label", "action", "subject_label", "organization", "reason"),
    list_select_related=("organization",),
    search_fields=("actor_label", "action", "subject_label"),
    ordering=("-id",),
)
_register(portal.InvoiceRun, list_display=("period", "is_preview", "state", "started_by", "created_at", "finished_at"))
_register(EmailAddress, list_display=("email", "user", "verified", "primary"), search_fields=("email",))
_register(
    Authenticator,
    list_display=("user", "type", "created_at", "last_used_at"),
    list_select_related=("user",),
    search_fields=("user__email",),
    exclude=("data",),
)
_register(
    SocialAccount,
    list_display=("user", "provider", "uid", "last_login"),
    list_select_related=("user",),
    search_fields=("user__email", "uid"),
    exclude=("extra_data",),
)
_register(
    UserSession,
    list_display=("user", "ip", "user_agent", "created_at", "last_seen_at"),
    list_select_related=("user",),
    search_fields=("user__email", "ip"),
    exclude=("session_key", "data"),
)
_register(
    AccessAttempt,
    list_display=("username", "ip_address", "failures_since_start", "attempt_time"),
    search_fields=("username", "ip_address"),
    exclude=("get_data", "post_data"),
)
_register(PeriodicTask, list_display=("name", "task", "interval", "crontab", "enabled", "last_run_at"))
