"""Who one is, organizations, members, invitations, projects."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import ManagementView, by_id, lists, page, read_body
from api.rest.serializers.access import (
    InvitationSerializer,
    MemberSerializer,
    MeSerializer,
    NewOrganizationSerializer,
    OrganizationSerializer,
    ProjectSerializer,
    ReasonSerializer,
    TransferSerializer,
)
from portal import access
from portal.organizations import invitations, lifecycle, selectors, services
from portal.organizations.roles import Role
from portal.permissions import Permission

TAG = "organizations"


class Me(ManagementView):
    @extend_schema(operation_id="show_me", tags=[TAG], responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Who calls, and the organizations they see."""
        user = self.person
        fields = {
            "email": user.email,
            "name": user.name,
            "management_key": user.management_key and str(user.management_key),
            "operator_key": user.operator_key and str(user.operator_key),
            "memberships": access.memberships_of(user),
        }
        return Response(MeSerializer(fields).data)


class Organizations(ManagementView):
    @extend_schema(operation_id="list_organizations", tags=[TAG], responses=OrganizationSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The organizations that the caller is a member of."""
        found = [member.organization for member in access.memberships_of(self.person)]
        return Response({"data": OrganizationSerializer(found, many=True).data, "next": None})

    @extend_schema(
        operation_id="create_organization",
        tags=[TAG],
        request=NewOrganizationSerializer,
        responses={201: OrganizationSerializer},
    )
    def post(self, request: Request) -> Response:
        """A new organization, owned by the caller. For people: a management key belongs to one organization."""
        if self.person.management_key is not None or self.person.operator_key is not None:
            raise PermissionDenied("A key creates no organization; sign in to create one.")
        fields = read_body(NewOrganizationSerializer(data=request.data))
        organization = services.create_organization(owner=self.person, name=fields["name"])
        return Response(OrganizationSerializer(organization).data, status=201)


class OrganizationDetail(ManagementView):
    @extend_schema(operation_id="show_organization", tags=[TAG], responses=OrganizationSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """One organization."""
        return Response(OrganizationSerializer(access.organization_for(self.person, slug)).data)

    @extend_schema(
        operation_id="change_organization", tags=[TAG], request=OrganizationSerializer, responses=OrganizationSerializer
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change name, time zone or allowed origins, what is kept, and whether members need a second factor."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_SETTINGS)
        wanted = read_body(OrganizationSerializer(organization, data=request.data, partial=True))
        services.change_settings(
            organization=organization,
            name=wanted.get("name", organization.name),
            time_zone=wanted.get("time_zone", organization.time_zone),
            actor=self.person,
        )
        if "allowed_origins" in wanted:
            services.change_allowed_origins(
                organization=organization, origins=wanted["allowed_origins"], actor=self.person
            )
        if "keeps_responses" in wanted:
            services.set_responses_kept(
                organization=organization, are_kept=wanted["keeps_responses"], actor=self.person
            )
        if "requires_two_factor" in wanted:
            services.set_two_factor_required(
                organization=organization, is_required=wanted["requires_two_factor"], actor=self.person
            )
        return Response(OrganizationSerializer(organization).data)

    @extend_schema(
        operation_id="delete_organization", tags=[TAG], request=ReasonSerializer, responses=OrganizationSerializer
    )
    def delete(self, request: Request, slug: str) -> Response:
        """Refuse all calls now, and close it when the grace period ends. Until then it can be restored."""
        organization = access.organization_for(self.person, slug, Permission.DELETE_ORGANIZATION)
        fields = read_body(ReasonSerializer(data=request.data or {}))
        lifecycle.request_deletion(organization=organization, actor=self.person, reason=fields["reason"])
        return Response(OrganizationSerializer(organization).data)


class OrganizationRestore(ManagementView):
    @extend_schema(operation_id="restore_organization", tags=[TAG], request=None, responses=OrganizationSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """Take a deletion back."""
        organization = access.organization_for(self.person, slug, Permission.DELETE_ORGANIZATION)
        lifecycle.restore(organization=organization, actor=self.person)
        return Response(OrganizationSerializer(organization).data)


class OrganizationTransfer(ManagementView):
    @extend_schema(operation_id="transfer_organization", tags=[TAG], request=TransferSerializer, responses={204: None})
    def post(self, request: Request, slug: str) -> Response:
        """Make another member the owner, and the caller an admin."""
        member = access.member_for(self.person, slug, Permission.MANAGE_OWNERS)
        wanted = read_body(TransferSerializer(data=request.data))
        to = access.colleague_for(self.person, slug, wanted["member_id"])
        lifecycle.transfer(organization=member.organization, to=to, actor=member)
        return Response(status=204)


class Members(ManagementView):
    @lists("list_members", MemberSerializer, tag=TAG, summary="Members, newest first")
    def get(self, request: Request, slug: str) -> Response:
        return page(request, by_id(selectors.members(access.organization_for(self.person, slug))), MemberSerializer)


class MemberDetail(ManagementView):
    @extend_schema(operation_id="change_member", tags=[TAG], request=MemberSerializer, responses=MemberSerializer)
    def patch(self, request: Request, slug: str, member_id: int) -> Response:
        """Give a member another role; nobody gives or takes one above their own."""
        actor = access.member_for(self.person, slug, Permission.MANAGE_MEMBERS)
        colleague = access.colleague_for(self.person, slug, member_id)
        role = Role(read_body(MemberSerializer(data=request.data))["role"])
        access.require_grant(actor, colleague.role, role)
        services.change_role(member=colleague, role=role, actor=self.person)
        return Response(MemberSerializer(colleague).data)

    @extend_schema(operation_id="remove_member", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, member_id: int) -> Response:
        """Remove a member; a person may name themselves, and leaves."""
        actor = access.member_for(self.person, slug)
        colleague = access.colleague_for(self.person, slug, member_id)
        if colleague.user_id != actor.user_id or self.person.management_key is not None:
            actor = access.member_for(self.person, slug, Permission.MANAGE_MEMBERS)
            access.require_grant(actor, colleague.role)
        services.remove_member(member=colleague, actor=self.person)
        return Response(status=204)


class Invitations(ManagementView):
    @lists("list_invitations", InvitationSerializer, tag=TAG, summary="Open invitations, newest first")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug, Permission.MANAGE_MEMBERS)
        return page(request, by_id(selectors.invitations(organization)), InvitationSerializer)

    @extend_schema(
        operation_id="invite_member", tags=[TAG], request=InvitationSerializer, responses={201: InvitationSerializer}
    )
    def post(self, request: Request, slug: str) -> Response:
        """Mail a link to join. A repeat for an address withdraws the link that it had."""
        actor = access.member_for(self.person, slug, Permission.MANAGE_MEMBERS)
        fields = read_body(InvitationSerializer(data=request.data))
        role = Role(fields["role"])
        access.require_grant(actor, role)
        made = invitations.invite(organization=actor.organization, email=fields["email"], role=role, actor=self.person)
        return Response(InvitationSerializer(made).data, status=201)


class InvitationDetail(ManagementView):
    @extend_schema(operation_id="withdraw_invitation", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, invitation_id: int) -> Response:
        """The link stops working. A repeat changes nothing."""
        found = access.invitation_for(self.person, slug, invitation_id, Permission.MANAGE_MEMBERS)
        invitations.withdraw(invitation=found, actor=self.person)
        return Response(status=204)


class Projects(ManagementView):
    @lists("list_projects", ProjectSerializer, tag=TAG, summary="Projects, newest first")
    def get(self, request: Request, slug: str) -> Response:
        return page(request, by_id(selectors.projects(access.organization_for(self.person, slug))), ProjectSerializer)

    @extend_schema(
        operation_id="create_project", tags=[TAG], request=ProjectSerializer, responses={201: ProjectSerializer}
    )
    def post(self, request: Request, slug: str) -> Response:
        """A new project; its slug comes from its name."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_PROJECTS)
        name = read_body(ProjectSerializer(data=request.data))["name"]
        if not name.strip():
            raise ValidationError({"name": ["Enter a name."]})
        made = services.create_project(organization=organization, name=name, actor=self.person)
        return Response(ProjectSerializer(made).data, status=201)


class ProjectDetail(ManagementView):
    @extend_schema(operation_id="rename_project", tags=[TAG], request=ProjectSerializer, responses=ProjectSerializer)
    def patch(self, request: Request, slug: str, project_slug: str) -> Response:
        """Another name; the slug stays."""
        project = access.project_for(self.person, slug, project_slug, Permission.MANAGE_PROJECTS)
        name = read_body(ProjectSerializer(data=request.data))["name"]
        services.rename_project(project=project, name=name, actor=self.person)
        return Response(ProjectSerializer(project).data)


class ProjectArchive(ManagementView):
    @extend_schema(operation_id="archive_project", tags=[TAG], request=ReasonSerializer, responses=ProjectSerializer)
    def post(self, request: Request, slug: str, project_slug: str) -> Response:
        """Refuse the project's keys from now on; its usage stays. A repeat changes nothing."""
        project = access.project_for(self.person, slug, project_slug, Permission.MANAGE_PROJECTS)
        fields = read_body(ReasonSerializer(data=request.data or {}))
        services.archive_project(project=project, actor=self.person, reason=fields["reason"])
        return Response(ProjectSerializer(project).data)


class ProjectRestore(ManagementView):
    @extend_schema(operation_id="restore_project", tags=[TAG], request=None, responses=ProjectSerializer)
    def post(self, request: Request, slug: str, project_slug: str) -> Response:
        """Let the project's keys work again."""
        project = access.project_for(self.person, slug, project_slug, Permission.MANAGE_PROJECTS)
        services.restore_project(project=project, actor=self.person)
        return Response(ProjectSerializer(project).data)
