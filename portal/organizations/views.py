"""Members, invitations, projects and settings of an organization."""

from __future__ import annotations

from typing import Any

from django.conf import settings as conf
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from portal import access
from portal.errors import PortalError
from portal.gone_rows import told_when_gone
from portal.organizations import invitations, lifecycle, selectors, services
from portal.organizations.forms import (
    ArchiveForm,
    DeletionForm,
    InvitationForm,
    OrganizationForm,
    OriginsForm,
    ProjectForm,
    RoleForm,
    SettingsForm,
    TransferForm,
)
from portal.organizations.models import Member
from portal.organizations.roles import DESCRIPTIONS, Role
from portal.pages import member_page
from portal.permissions import Permission, role_choices
from portal.retention import kept
from portal.users.requests import signed_in
from portal.users.two_factor import with_second_factor

# Of a page, oldest first.
MEMBERS_SHOWN = 50
# Of a page of the settings, as lists of projects are ordered everywhere.
PROJECTS_SHOWN = 20
MEMBER_GONE = _("This person is a member no more: somebody removed them meanwhile, or they left.")


@login_required
def create(request: HttpRequest) -> HttpResponse:
    form = OrganizationForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        organization = services.create_organization(
            owner=signed_in(request), name=form.cleaned_data["name"], currency=form.cleaned_data["currency"]
        )
        return redirect("portal:dashboard", organization.slug)
    return render(request, "portal/organizations/new.html", {"form": form}, status=400 if form.errors else 200)


def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """The mailed link. Whoever is not signed in is asked to, with the invited address, and comes back here."""
    found = invitations.find_open(token)
    user = request.user
    is_theirs = bool(found and user.is_authenticated and user.email.lower() == found.email.lower())
    if request.method == "POST":
        try:
            if found is None or not is_theirs:
                raise PermissionDenied(_("This invitation is for another address."))
            member = invitations.accept(invitation=found, user=signed_in(request))
        except PortalError as error:
            messages.error(request, str(error))
            return redirect("portal:home")
        messages.success(request, _("You are now in %(name)s.") % {"name": member.organization.name})
        return redirect("portal:dashboard", member.organization.slug)
    context = {"invitation": found, "is_theirs": is_theirs}
    return render(request, "portal/organizations/invitation.html", context, status=200 if found else 404)


@login_required
def members(request: HttpRequest, slug: str) -> HttpResponse:
    """Everyone sees their colleagues; admins invite."""
    member = access.member_for(
        request.user, slug, Permission.MANAGE_MEMBERS if request.method == "POST" else Permission.VIEW
    )
    form = InvitationForm(request.POST or None, granter=member.role_in_force)
    if request.method == "POST" and form.is_valid():
        email = form.cleaned_data["email"]
        try:
            invitations.invite(
                organization=member.organization, email=email, role=Role(form.cleaned_data["role"]), actor=member.user
            )
        except PortalError as error:
            form.add_error("email", str(error))
        else:
            messages.success(request, _("An invitation is on its way to %(email)s.") % {"email": email})
            return redirect("portal:members", slug)
    shown = Paginator(selectors.members(member.organization).order_by("joined_at", "id"), MEMBERS_SHOWN).get_page(
        request.GET.get("page")
    )
    roles = role_choices(member.role_in_force)
    context = {
        "form": form,
        "members": shown,
        "owner_count": selectors.owner_count(member.organization),
        "with_two_factor": with_second_factor(each.user_id for each in shown),
        "invitations": selectors.open_invitations(member.organization),
        "roles": roles,
        # Nobody changes or removes who has a role that they could not give.
        "grantable": {value for value, _label, _meaning in roles},
        "role_descriptions": [(role.label, DESCRIPTIONS[role]) for role in Role],
    }
    status = 400 if form.errors else 200
    return member_page(request, member, "members", "portal/organizations/members.html", context, status=status)


@login_required
@require_POST
@told_when_gone("members", MEMBER_GONE)
def change_role(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    actor = access.member_for(request.user, slug, Permission.MANAGE_MEMBERS)
    colleague = access.colleague_for(request.user, slug, member_id)
    form = RoleForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Choose one of the roles."))
        return redirect("portal:members", slug)
    role = Role(form.cleaned_data["role"])
    access.require_grant(actor, colleague.role, role)
    done = _("%(email)s is now %(role)s.") % {"email": colleague.user.email, "role": role.label}
    _try(request, services.change_role, done, member=colleague, role=role)
    return redirect("portal:members", slug)


@login_required
@require_POST
@told_when_gone("members", MEMBER_GONE)
def remove_member(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Admins remove others; anyone may leave."""
    actor = access.member_for(request.user, slug)
    colleague = access.colleague_for(request.user, slug, member_id)
    if colleague.user_id != actor.user_id:
        access.member_for(request.user, slug, Permission.MANAGE_MEMBERS)
        access.require_grant(actor, colleague.role)
    is_done = _try(
        request,
        services.remove_member,
        _("%(email)s is no longer a member.") % {"email": colleague.user.email},
        member=colleague,
    )
    if is_done and colleague.user_id == actor.user_id:
        return redirect("portal:home")
    return redirect("portal:members", slug)


def _try(request: HttpRequest, act: Any, done: Any, **arguments: Any) -> bool:
    """Runs a service for the signed-in user and tells them how it went."""
    try:
        act(actor=signed_in(request), **arguments)
    except PortalError as error:
        messages.error(request, str(error))
        return False
    messages.success(request, done)
    return True


@login_required
@require_POST
@told_when_gone("members", _("This invitation is open no longer: it was withdrawn or accepted meanwhile."))
def withdraw_invitation(request: HttpRequest, slug: str, invitation_id: int) -> HttpResponse:
    found = access.invitation_for(request.user, slug, invitation_id, Permission.MANAGE_MEMBERS)
    if not invitations.withdraw(invitation=found, actor=signed_in(request)):
        raise access.RowGone("No such open invitation.")
    messages.success(request, _("The invitation of %(email)s is withdrawn.") % {"email": found.email})
    return redirect("portal:members", slug)


@login_required
def settings(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(
        request.user, slug, Permission.MANAGE_SETTINGS if request.method == "POST" else Permission.VIEW
    )
    organization = member.organization
    form = SettingsForm(request.POST or None, organization=organization)
    if request.method == "POST" and form.is_valid():
        services.change_settings(organization=organization, actor=member.user, **form.cleaned_data)
        messages.success(request, _("The settings are saved."))
        return redirect("portal:settings", slug)
    return _settings_page(request, member, form, ProjectForm())


def _settings_page(
    request: HttpRequest, member: Member, form: SettingsForm, project_form: ProjectForm, **more: Any
) -> HttpResponse:
    organization = member.organization
    people = selectors.members_of(organization)
    colleagues = [each for each in people if each.id != member.id]
    secured = with_second_factor(each.user_id for each in people)
    projects = Paginator(selectors.projects_in_order(organization), PROJECTS_SHOWN).get_page(request.GET.get("page"))
    context: dict[str, Any] = {
        "form": form,
        "origins_form": OriginsForm(None, organization=organization),
        "response_days": conf.RESPONSE_RETENTION_DAYS,
        "project_form": project_form,
        "projects": projects,
        "active_keys": selectors.active_keys(projects),
        "project_spend": selectors.project_spend(organization, now=timezone.now()),
        "kept": kept(keeps_responses=organization.keeps_responses),
        "member_count": len(people),
        "secured_count": len(secured),
        "unsecured": [each.user.email for each in people if each.user_id not in secured],
        "transfer_form": TransferForm(colleagues=colleagues) if colleagues else None,
        "deletion_form": DeletionForm(name=organization.name),
        "grace_days": conf.ORGANIZATION_GRACE_DAYS,
        "has_two_factor": member.user_id in secured,
    } | more
    forms = (form, project_form, context["origins_form"], context["deletion_form"])
    status = 400 if any(each.errors for each in forms) else 200
    return member_page(request, member, "settings", "portal/organizations/settings.html", context, status=status)


@login_required
@require_POST
def create_project(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_PROJECTS)
    form = ProjectForm(request.POST)
    if form.is_valid():
        try:
            services.create_project(organization=member.organization, name=form.cleaned_data["name"], actor=member.user)
        except PortalError as error:
            form.add_error("name", str(error))
        else:
            messages.success(request, _("The project is made; choose it when you create a key."))
            return redirect("portal:settings", slug)
    return _settings_page(request, member, SettingsForm(None, organization=member.organization), form)


@login_required
@require_POST
def rename_project(request: HttpRequest, slug: str, project_slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_PROJECTS)
    project = access.project_for(request.user, slug, project_slug)
    form = ProjectForm(request.POST)
    if form.is_valid():
        services.rename_project(project=project, name=form.cleaned_data["name"], actor=member.user)
        messages.success(request, _("The project has its new name."))
    else:
        messages.error(request, " ".join(map(str, form.errors["name"])))
    return redirect("portal:settings", slug)


@login_required
@require_POST
def archive_project(request: HttpRequest, slug: str, project_slug: str) -> HttpResponse:
    project = access.project_for(request.user, slug, project_slug, Permission.MANAGE_PROJECTS)
    if request.POST.get("confirmation", "").strip() != project.name:
        messages.error(
            request, _("Nothing is archived: type the project's name, %(name)s, to confirm.") % {"name": project.name}
        )
        return redirect("portal:settings", slug)
    form = ArchiveForm(request.POST)
    if form.is_valid():
        done = _("%(name)s is archived; its keys are refused.") % {"name": project.name}
        _try(request, services.archive_project, done, project=project, reason=form.cleaned_data["reason"])
    else:
        messages.error(request, " ".join(map(str, form.errors["reason"])))
    return redirect("portal:settings", slug)


@login_required
@require_POST
def restore_project(request: HttpRequest, slug: str, project_slug: str) -> HttpResponse:
    project = access.project_for(request.user, slug, project_slug, Permission.MANAGE_PROJECTS)
    _try(
        request,
        services.restore_project,
        _("%(name)s is restored; its keys work again.") % {"name": project.name},
        project=project,
    )
    return redirect("portal:settings", slug)


@login_required
@require_POST
def origins(request: HttpRequest, slug: str) -> HttpResponse:
    """From which sites browsers may call models with the organization's keys."""
    member = access.member_for(request.user, slug, Permission.MANAGE_SETTINGS)
    organization = member.organization
    form = OriginsForm(request.POST, organization=organization)
    if not form.is_valid():
        settings_form = SettingsForm(None, organization=organization)
        return _settings_page(request, member, settings_form, ProjectForm(), origins_form=form)
    services.change_allowed_origins(organization=organization, origins=form.cleaned_data["origins"], actor=member.user)
    messages.success(request, _("The allowed origins are saved."))
    return redirect("portal:settings", slug)


@login_required
@require_POST
def responses_kept(request: HttpRequest, slug: str) -> HttpResponse:
    """Whether the Responses API may keep prompts and answers."""
    member = access.member_for(request.user, slug, Permission.MANAGE_SETTINGS)
    are_kept = request.POST.get("kept") == "1"
    services.set_responses_kept(organization=member.organization, are_kept=are_kept, actor=member.user)
    messages.success(
        request,
        _("Responses are kept from now on.")
        if are_kept
        else _("Responses are kept no longer; what is there is forgotten within the hour."),
    )
    return redirect("portal:settings", slug)


@login_required
@require_POST
def two_factor(request: HttpRequest, slug: str) -> HttpResponse:
    """Asks all members for a second factor, or no longer."""
    member = access.member_for(request.user, slug, Permission.MANAGE_SETTINGS)
    is_required = request.POST.get("required") == "1"
    done = (
        _("Members without two-factor authentication are asked to set it up before they get in.")
        if is_required
        else _("Two-factor authentication is each member's own choice again.")
    )
    _try(request, services.set_two_factor_required, done, organization=member.organization, is_required=is_required)
    return redirect("portal:settings", slug)


@login_required
@require_POST
def transfer(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_OWNERS)
    colleagues = [each for each in selectors.members_of(member.organization) if each.id != member.id]
    form = TransferForm(request.POST, colleagues=colleagues)
    if not form.is_valid():
        messages.error(request, _("Choose a member to hand the organization over to."))
        return redirect("portal:settings", slug)
    try:
        lifecycle.transfer(organization=member.organization, to=form.member(), actor=member)
    except PortalError as error:
        messages.error(request, str(error))
    else:
        messages.success(
            request,
            _("%(email)s owns %(name)s now.") % {"email": form.member().user.email, "name": member.organization.name},
        )
    return redirect("portal:settings", slug)


@login_required
@require_POST
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    """Calls are refused from now on; it can be restored until the grace period ends."""
    member = access.member_for(request.user, slug, Permission.DELETE_ORGANIZATION)
    organization = member.organization
    form = DeletionForm(request.POST, name=organization.name)
    if not form.is_valid():
        settings_form = SettingsForm(None, organization=organization)
        return _settings_page(request, member, settings_form, ProjectForm(), deletion_form=form)
    deletes_at = lifecycle.request_deletion(
        organization=organization, actor=member.user, reason=form.cleaned_data["reason"]
    )
    messages.warning(
        request,
        _("%(name)s is deleted; it can be restored until %(until)s UTC.")
        % {"name": organization.name, "until": f"{deletes_at:%Y-%m-%d %H:%M}"},
    )
    return redirect("portal:settings", slug)


@login_required
@require_POST
def restore(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.DELETE_ORGANIZATION)
    _try(
        request,
        lifecycle.restore,
        _("%(name)s is restored.") % {"name": member.organization.name},
        organization=member.organization,
    )
    return redirect("portal:settings", slug)
