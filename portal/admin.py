"""The support admin: to look things up, and to act through the same services as the portal's pages."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import urlencode

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt
from django.apps import apps
from django.contrib import admin, messages
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django_celery_beat.models import PeriodicTask
from unfold.admin import ModelAdmin

from billing.ledger import selectors as ledger
from billing.money import format_nano
from portal import models as portal
from portal.access import require_operator
from portal.admin_dialogs import Credit, KeyLimit, OrganizationLimit, Reason, Terms, asks, done, refused
from portal.api_keys import services as api_keys
from portal.billing_pages import services as billing_pages
from portal.catalog import services as catalog
from portal.operator.tenants import spent_this_month
from portal.organizations import services as organizations
from portal.quotas import services as quotas
from portal.quotas.models import QuotaKind
from portal.users.requests import signed_in

# What libraries register writes past our services, and shows secrets: support looks at some of it, below.
for _app in ("auth", "account", "mfa", "usersessions", "socialaccount", "axes", "django_celery_beat"):
    for _model in apps.get_app_config(_app).get_models():
        if admin.site.is_registered(_model):
            admin.site.unregister(_model)


LIMIT_HINT = "Used by the gateways from the next request on; a limit of the same kind that is there is replaced."
# Lists that an organization's page leads to, each narrowed to it.
OF_ORGANIZATION = (
    ("portal_member", "Members"),
    ("portal_project", "Projects"),
    ("portal_apikey", "API keys"),
    ("portal_quota", "Limits"),
    ("billing_usagerecord", "Records"),
    ("billing_creditgrant", "Credit grants"),
    ("billing_invoice", "Invoices"),
    ("portal_auditevent", "Audit log"),
)


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

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """What happened to the row is in our own audit log, and the library's stays empty."""
        address = reverse("admin:portal_auditevent_changelist")
        which = {"subject_type__exact": self.model._meta.model_name, "subject_id__exact": object_id}
        return redirect(f"{address}?{urlencode(which)}")


@admin.register(portal.Organization)
class OrganizationAdmin(ReadOnly):
    list_display = ("name", "slug", "time_zone", "suspended_at", "created_at")
    search_fields = ("name", "slug", "members__user__email")
    actions_detail = ("give_credit", "change_terms", "set_limit", "suspend", "resume")
    fieldsets = (
        (None, {"fields": ("name", "slug", "time_zone", "created_at", "suspended_at", "deletes_at", "closed_at")}),
        ("Money", {"fields": ("available", "held", "credit_limit", "spent")}),
        ("Settings", {"fields": ("requires_two_factor", "keeps_responses", "allowed_origins")}),
        ("Look up", {"fields": ("rows",)}),
    )

    @admin.display(description="Available, with the credit limit")
    def available(self, organization: portal.Organization) -> str:
        return _amount(organization, "available_nano")

    @admin.display(description="Held by running calls")
    def held(self, organization: portal.Organization) -> str:
        return _amount(organization, "held_nano")

    @admin.display(description="Credit limit")
    def credit_limit(self, organization: portal.Organization) -> str:
        return _amount(organization, "credit_limit_nano")

    @admin.display(description="Spent this month, UTC")
    def spent(self, organization: portal.Organization) -> str:
        spent_nano = spent_this_month([organization.id], now=timezone.now()).get(organization.id, 0)
        return format_nano(spent_nano, ledger.balance(organization.id).currency)

    @admin.display(description="Of this organization")
    def rows(self, organization: portal.Organization) -> str:
        page = reverse("portal:operator_organization", args=[organization.slug])
        lists = [
            (f"{reverse(f'admin:{name}_changelist')}?organization__id__exact={organization.id}", label)
            for name, label in OF_ORGANIZATION
        ]
        link = '<a class="text-primary-600 underline dark:text-primary-400" href="{}">{}</a>'
        return format_html_join(" \N{MIDDLE DOT} ", link, [(page, "Operator page"), *lists])

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("available", "held", "credit_limit", "spent", "rows")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """What can be done to it as it is: no more than one of suspend and resume."""
        is_suspended = portal.Organization.objects.get(id=object_id).is_suspended
        unfit = "suspend" if is_suspended else "resume"
        return [each for each in super().get_actions_detail(request, object_id) if not each.action_name.endswith(unfit)]

    @asks(
        Credit,
        "Give credit",
        icon="redeem",
        title="Give credit",
        submit="Give it",
        description="In the organization's currency. Its ledger shows the reason.",
    )
    def give_credit(self, request: HttpRequest, form: Credit, object_id: str) -> HttpResponse:
        actor, organization = _actor_and(portal.Organization, request, object_id)
        billing_pages.grant_credit(
            organization=organization,
            amount_nano=form.cleaned_data["amount"],
            reason=form.cleaned_data["reason"],
            key=f"operator:{form.cleaned_data['key']}",
            actor=actor,
        )
        return _done(request, organization, f"{organization.name} has the credit.")

    @asks(Terms, "Credit limit", icon="account_balance_wallet", title="Change the credit limit", submit="Change it")
    def change_terms(self, request: HttpRequest, form: Terms, object_id: str) -> HttpResponse:
        actor, organization = _actor_and(portal.Organization, request, object_id)
        billing_pages.change_credit_limit(
            organization=organization,
            credit_limit_nano=form.cleaned_data["credit_limit"],
            actor=actor,
            reason=form.cleaned_data["reason"],
        )
        return _done(request, organization, "The credit limit is set.")

    @asks(
        OrganizationLimit,
        "Set a limit",
        icon="speed",
        title="Limit the organization",
        submit="Set the limit",
        description=LIMIT_HINT,
    )
    def set_limit(self, request: HttpRequest, form: OrganizationLimit, object_id: str) -> HttpResponse:
        actor, organization = _actor_and(portal.Organization, request, object_id)
        return _set_limit(request, form, organization, organization, actor)

    @asks(
        Reason,
        "Suspend",
        icon="block",
        title="Suspend: its calls are refused within seconds",
        submit="Suspend",
        is_severe=True,
    )
    def suspend(self, request: HttpRequest, form: Reason, object_id: str) -> HttpResponse:
        return self._set_suspended(request, form, object_id, True)

    @asks(Reason, "Resume", icon="play_circle", title="Resume: its calls are accepted again", submit="Resume")
    def resume(self, request: HttpRequest, form: Reason, object_id: str) -> HttpResponse:
        return self._set_suspended(request, form, object_id, False)

    def _set_suspended(self, request: HttpRequest, form: Reason, object_id: str, is_suspended: bool) -> HttpResponse:
        actor, organization = _actor_and(portal.Organization, request, object_id)
        organizations.set_suspended(
            organization=organization, is_suspended=is_suspended, actor=actor, reason=form.cleaned_data["reason"]
        )
        return _done(
            request, organization, f"{organization.name} is {'suspended' if is_suspended else 'active again'}."
        )


@admin.register(portal.ApiKey)
class ApiKeyAdmin(ReadOnly):
    list_display = ("name", "prefix", "organization", "project", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("organization", "project")
    search_fields = ("name", "prefix", "organization__name")
    # A digest is of no use to support, and what is not shown cannot leak.
    exclude = ("digest",)
    actions_detail = ("set_limit", "revoke")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """A key that is revoked stays so."""
        if portal.ApiKey.objects.get(id=object_id).revoked_at:
            return []
        return list(super().get_actions_detail(request, object_id))

    @asks(
        KeyLimit,
        "Set a limit",
        icon="speed",
        title="Limit the key",
        submit="Set the limit",
        description=LIMIT_HINT,
    )
    def set_limit(self, request: HttpRequest, form: KeyLimit, object_id: str) -> HttpResponse:
        actor, api_key = _actor_and(portal.ApiKey, request, object_id)
        return _set_limit(request, form, api_key, api_key.organization, actor)

    @asks(
        Reason,
        "Revoke",
        icon="block",
        title="Revoke: refused within seconds, cannot be undone",
        submit="Revoke",
        is_severe=True,
    )
    def revoke(self, request: HttpRequest, form: Reason, object_id: str) -> HttpResponse:
        actor, api_key = _actor_and(portal.ApiKey, request, object_id)
        api_keys.revoke(api_key=api_key, actor=actor, reason=form.cleaned_data["reason"])
        return _done(request, api_key, f"{api_key} is revoked.")


@admin.register(portal.Quota)
class QuotaAdmin(ReadOnly):
    list_display = (
        "organization",
        "project",
        "api_key",
        "member",
        "model",
        "kind",
        "window",
        "at_most",
        "mode",
        "changed_at",
    )
    list_select_related = ("organization__billing_account", "project", "api_key", "member__user")
    search_fields = ("organization__name", "api_key__name", "api_key__prefix")
    exclude = ("limit",)
    actions_detail = ("remove",)

    @admin.display(description="At most", ordering="limit")
    def at_most(self, quota: portal.Quota) -> str:
        if quota.kind == QuotaKind.SPEND:
            return format_nano(quota.limit, quota.organization.billing_account.currency)
        return f"{quota.limit:,}"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("at_most",)

    @asks(
        Reason,
        "Remove",
        icon="delete",
        title="Remove the limit: it holds back no call from now on",
        submit="Remove",
        is_severe=True,
    )
    def remove(self, request: HttpRequest, form: Reason, object_id: str) -> HttpResponse:
        actor, quota = _actor_and(portal.Quota, request, object_id)
        try:
            quotas.remove_quota(quota=quota, actor=actor, reason=form.cleaned_data["reason"])
        except quotas.QuotaImposed as error:
            return refused(request, form, "reason", error, "Remove")
        messages.success(request, "The limit is removed.")
        return done(request, reverse("admin:portal_quota_changelist"))


def _amount(organization: portal.Organization, name: str) -> str:
    balance = ledger.balance(organization.id)
    return format_nano(getattr(balance, name), balance.currency)


Row = TypeVar("Row", bound=models.Model)


def _actor_and(model: type[Row], request: HttpRequest, object_id: str) -> tuple[portal.User, Row]:
    """Who acts, with an operator's rights, and on what; 404 without either."""
    return require_operator(request.user), get_object_or_404(model, id=object_id)


def _set_limit(
    request: HttpRequest,
    form: OrganizationLimit,
    row: models.Model,
    organization: portal.Organization,
    actor: portal.User,
) -> HttpResponse:
    try:
        quotas.change_quota(organization=organization, actor=actor, **form.cleaned_data["quota"])
    except quotas.QuotaAboveCeiling as error:
        return refused(request, form, "amount", error, "Set the limit")
    return _done(request, row, "The limit is set and applies to the next request.")


def _done(request: HttpRequest, row: models.Model, text: str) -> HttpResponse:
    messages.success(request, text)
    return done(request, reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk]))


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
    portal.AuditEvent,
    list_display=("created_at", "actor_label", "action", "subject_label", "organization", "reason"),
    list_select_related=("organization",),
    search_fields=("actor_label", "action", "subject_label"),
    ordering=("-id",),
)
_register(
    portal.Invitation,
    list_display=("email", "organization", "role", "invited_by", "created_at", "expires_at", "accepted_at"),
    list_select_related=("organization", "invited_by"),
    search_fields=("email", "organization__name"),
    exclude=("token_digest",),
)
_register(
    portal.ManagementKey,
    list_display=("name", "prefix", "organization", "role", "created_at", "last_used_at", "revoked_at"),
    list_select_related=("organization",),
    search_fields=("name", "prefix", "organization__name"),
    exclude=("digest",),
)
_register(
    portal.Alert,
    list_display=("title", "organization", "threshold", "created_at", "mailed_at"),
    list_select_related=("organization",),
    search_fields=("organization__name",),
    ordering=("-id",),
)
_register(
    portal.WebhookEndpoint,
    list_display=("url", "organization", "is_enabled", "created_at"),
    list_select_related=("organization",),
    search_fields=("url", "organization__name"),
    exclude=("sealed_secret", "sealed_previous_secret"),
)
_register(
    portal.WebhookDelivery,
    list_display=("event_type", "organization", "state", "attempts", "last_status", "last_error", "created_at"),
    list_select_related=("organization",),
    list_filter=("state",),
    search_fields=("event_id", "organization__name"),
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
