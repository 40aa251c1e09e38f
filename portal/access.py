"""The only way a view obtains an owned row. Whoever may not see it gets the same 404 as when it is not there."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404

from portal.api_keys.models import ApiKey, Purpose
from portal.organizations.models import Invitation, Member, Organization, Project, Role
from portal.users.models import User


def member_for(user: User | AnonymousUser, slug: str, role: Role | None = None) -> Member:
    """The user's membership with its organization. An outsider gets 404; a member below `role` gets 403."""
    member = None
    if user.is_authenticated:
        member = (
            Member.objects.filter(user=user, organization__slug=slug).select_related("organization", "user").first()
        )
    if member is None:
        raise Http404("No such organization.")
    if role is not None and not member.has_role(role):
        raise PermissionDenied(
            f"This needs the role {role.label.lower()}; yours is {member.get_role_display().lower()}."
        )
    return member


def organization_for(user: User | AnonymousUser, slug: str, role: Role | None = None) -> Organization:
    return member_for(user, slug, role).organization


def project_for(user: User | AnonymousUser, slug: str, project_slug: str, role: Role | None = None) -> Project:
    organization = organization_for(user, slug, role)
    project = Project.objects.filter(organization=organization, slug=project_slug).first()
    if project is None:
        raise Http404("No such project.")
    return project


def api_key_for(user: User | AnonymousUser, slug: str, api_key_id: int, role: Role | None = None) -> ApiKey:
    organization = organization_for(user, slug, role)
    api_key = (
        ApiKey.objects.filter(organization=organization, id=api_key_id, purpose=Purpose.CLIENT)
        .select_related("project")
        .first()
    )
    if api_key is None:
        raise Http404("No such API key.")
    return api_key


def colleague_for(user: User | AnonymousUser, slug: str, member_id: int, role: Role | None = None) -> Member:
    """Another member of the user's organization."""
    organization = organization_for(user, slug, role)
    member = (
        Member.objects.filter(organization=organization, id=member_id).select_related("user", "organization").first()
    )
    if member is None:
        raise Http404("No such member.")
    return member


def invitation_for(user: User | AnonymousUser, slug: str, invitation_id: int, role: Role | None = None) -> Invitation:
    organization = organization_for(user, slug, role)
    invitation = Invitation.objects.filter(organization=organization, id=invitation_id).first()
    if invitation is None:
        raise Http404("No such invitation.")
    return invitation


def require_operator(user: User | AnonymousUser) -> User:
    """Operator pages do not exist for anyone else."""
    if not (user.is_authenticated and user.is_staff):
        raise Http404
    return user
