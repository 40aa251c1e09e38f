"""Members, invitations, projects and settings of an organization."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal import access
from portal.errors import PortalError
from portal.organizations import invitations, selectors, services
from portal.organizations.forms import InvitationForm, OrganizationForm, ProjectForm, RoleForm, SettingsForm
from portal.organizations.models import Member
from portal.organizations.roles import Role
from portal.pages import member_page
from portal.permissions import Permission
from portal.users.requests import signed_in


@login_required
def create(request: HttpRequest) -> HttpResponse:
    form = OrganizationForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        organization = services.create_organization(owner=signed_in(request), name=form.cleaned_data["name"])
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
                raise PermissionDenied("This invitation is for another address.")
            member = invitations.accept(invitation=found, user=signed_in(request))
        except PortalError as error:
            messages.error(request, str(error))
            return redirect("portal:home")
        messages.success(request, f"You are now in {member.organization.name}.")
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
            messages.success(request, f"An invitation is on its way to {email}.")
            return redirect("portal:members", slug)
    context = {
        "form": form,
        "members": selectors.members_of(member.organization),
        "invitations": selectors.open_invitations(member.organization),
        "can_change": member.may(Permission.MANAGE_MEMBERS),
        "roles": Role.choices,
    }
    status = 400 if form.errors else 200
    return member_page(request, member, "members", "portal/organizations/members.html", context, status=status)


@login_required
@require_POST
def change_role(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    actor = access.member_for(request.user, slug, Permission.MANAGE_MEMBERS)
    colleague = access.colleague_for(request.user, slug, member_id)
    form = RoleForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Choose one of the roles.")
        return redirect("portal:members", slug)
    role = Role(form.cleaned_data["role"])
    access.require_grant(actor, colleague.role, role)
    done = f"{colleague.user.email} is now {role.label.lower()}."
    _try(request, services.change_role, done, member=colleague, role=role)
    return redirect("portal:members", slug)


@login_required
@require_POST
def remove_member(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Admins remove others; anyone may leave."""
    actor = access.member_for(request.user, slug)
    colleague = access.colleague_for(request.user, slug, member_id)
    if colleague.user_id != actor.user_id:
        access.member_for(request.user, slug, Permission.MANAGE_MEMBERS)
        access.require_grant(actor, colleague.role)
    is_done = _try(request, services.remove_member, f"{colleague.user.email} is no longer a member.", member=colleague)
    if is_done and colleague.user_id == actor.user_id:
        return redirect("portal:home")
    return redirect("portal:members", slug)


def _try(request: HttpRequest, act: Any, done: str, **arguments: Any) -> bool:
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
def withdraw_invitation(request: HttpRequest, slug: str, invitation_id: int) -> HttpResponse:
    found = access.invitation_for(request.user, slug, invitation_id, Permission.MANAGE_MEMBERS)
    invitations.withdraw(invitation=found, actor=signed_in(request))
    messages.success(request, f"The invitation of {found.email} is withdrawn.")
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
        messages.success(request, "The settings are saved.")
        return redirect("portal:settings", slug)
    return _settings_page(request, member, form, ProjectForm())


def _settings_page(request: HttpRequest, member: Member, form: SettingsForm, project_form: ProjectForm) -> HttpResponse:
    context = {
        "form": form,
        "project_form": project_form,
        "projects": selectors.projects_of(member.organization),
        "can_change": member.may(Permission.MANAGE_SETTINGS),
    }
    status = 400 if form.errors or project_form.errors else 200
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
            messages.success(request, "The project is made; choose it when you create a key.")
            return redirect("portal:settings", slug)
    return _settings_page(request, member, SettingsForm(None, organization=member.organization), form)
