"""The only way a view obtains an owned row. Whoever may not see it gets the same 404 as when it is not there.

Each function takes the permission that the act needs (`portal/permissions.py`); without one, what every member may: to
look. That holds for people in a browser and for management keys alike: a key is confined to its organization and role,
and an operator key to the operator's paths.
"""

from __future__ import annotations

from typing import TypeVar

from allauth.mfa.utils import is_mfa_enabled
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import QuerySet
from django.http import Http404
from django.utils.translation import gettext_lazy as _

from portal.alerts.models import AlertRule, WebhookDelivery, WebhookEndpoint
from portal.api_keys.models import ApiKey, ManagementKey, Purpose
from portal.organizations.models import Invitation, Member, Organization, Project
from portal.organizations.roles import Role
from portal.permissions import WORDS, Permission, may_grant, roles_with
from portal.playground.models import SharedConversation
from portal.users.models import User

Person = User | AnonymousUser
Row = TypeVar("Row", bound=models.Model)


class NotPermitted(PermissionDenied):
    """The member's role does not allow the act; says which role does."""

    def __init__(self, permission: Permission, role: Role) -> None:
        self.permission = permission
        words = {
            "act": WORDS[permission],
            "needed": str(_(" or ")).join(str(each.label) for each in roles_with(permission)),
            "own": role.label,
        }
        super().__init__(_("To %(act)s needs the role %(needed)s; yours is %(own)s.") % words)


class RowGone(Http404):
    """The person may act, and the row is not there, or not their organization's: to them that is the same."""


class TwoFactorNeeded(PermissionDenied):
    """The organization lets in only people whose account has a second factor."""

    def __init__(self, organization: Organization) -> None:
        text = _("%(name)s requires two-factor authentication; set it up in your account first.")
        super().__init__(text % {"name": organization.name})


def memberships_of(user: User) -> QuerySet[Member]:
    """Of the organizations that the user sees, oldest first. A management key sees its own, an operator key none."""
    found = Member.objects.filter(user=user).select_related("organization", "user").order_by("id")
    if user.operator_key is not None:
        return found.none()
    key = user.management_key
    return found if key is None else found.filter(organization_id=key.organization_id)


def _acting_member(user: User, slug: str) -> Member | None:
    """Of an operator who acts for the organization: in the role they took, in no table."""
    acting = user.acting
    if acting is None or acting.slug != slug or not user.is_staff or user.management_key is not None:
        return None
    return Member(user=user, organization=Organization.objects.get(id=acting.organization_id), role=acting.role)


def member_for(user: Person, slug: str, need: Permission = Permission.VIEW) -> Member:
    """The user's membership with its organization. An outsider gets 404; a member without the permission gets 403."""
    member = None
    if user.is_authenticated:
        member = memberships_of(user).filter(organization__slug=slug).first() or _acting_member(user, slug)
    if member is None:
        raise Http404("No such organization.")
    assert user.is_authenticated
    member.user = user
    if member.organization.requires_two_factor and user.management_key is None and not is_mfa_enabled(user):
        raise TwoFactorNeeded(member.organization)
    if not member.may(need):
        raise NotPermitted(need, member.role_in_force)
    return member


def organization_for(user: Person, slug: str, need: Permission = Permission.VIEW) -> Organization:
    return member_for(user, slug, need).organization


def _owned(rows: QuerySet[Row], organization: Organization, name: str, **which: object) -> Row:
    row = rows.filter(organization=organization, **which).first()
    if row is None:
        raise RowGone(f"No such {name}.")
    return row


def project_for(user: Person, slug: str, project_slug: str, need: Permission = Permission.VIEW) -> Project:
    return _owned(Project.objects.all(), organization_for(user, slug, need), "project", slug=project_slug)


def api_key_for(user: Person, slug: str, api_key_id: int, need: Permission = Permission.VIEW) -> ApiKey:
    keys = ApiKey.objects.filter(purpose=Purpose.CLIENT).select_related("project", "created_by")
    return _owned(keys, organization_for(user, slug, need), "API key", id=api_key_id)


def management_key_for(user: Person, slug: str, key_id: int, need: Permission) -> ManagementKey:
    return _owned(ManagementKey.objects.all(), organization_for(user, slug, need), "management key", id=key_id)


def colleague_for(user: Person, slug: str, member_id: int, need: Permission = Permission.VIEW) -> Member:
    """Another member of the user's organization."""
    members = Member.objects.select_related("user", "organization")
    return _owned(members, organization_for(user, slug, need), "member", id=member_id)


def invitation_for(user: Person, slug: str, invitation_id: int, need: Permission) -> Invitation:
    return _owned(Invitation.objects.all(), organization_for(user, slug, need), "invitation", id=invitation_id)


def alert_rule_for(user: Person, slug: str, rule_id: int, need: Permission) -> AlertRule:
    return _owned(AlertRule.objects.all(), organization_for(user, slug, need), "alert rule", id=rule_id)


def webhook_for(user: Person, slug: str, webhook_id: int, need: Permission) -> WebhookEndpoint:
    return _owned(WebhookEndpoint.objects.all(), organization_for(user, slug, need), "webhook", id=webhook_id)


def delivery_for(user: Person, slug: str, delivery_id: int, need: Permission) -> WebhookDelivery:
    deliveries = WebhookDelivery.objects.select_related("endpoint")
    return _owned(deliveries, organization_for(user, slug, need), "delivery", id=delivery_id)


def shared_conversation_for(
    user: Person, slug: str, share_id: int, need: Permission = Permission.VIEW
) -> SharedConversation:
    shared = SharedConversation.objects.select_related("shared_by")
    return _owned(shared, organization_for(user, slug, need), "shared conversation", id=share_id)


def require_grant(member: Member, *roles: str) -> None:
    """Nobody gives or takes a role that may do what they may not."""
    if not all(may_grant(member.role_in_force, Role(role)) for role in roles):
        raise NotPermitted(Permission.MANAGE_OWNERS, member.role_in_force)


def is_operator(user_id: int) -> bool:
    """As the database has it now, for connections that outlive a request."""
    return User.objects.filter(id=user_id, is_staff=True, is_active=True).exists()


class ReadOnlyKey(PermissionDenied):
    """The operator key was not made to change anything."""

    def __init__(self) -> None:
        super().__init__("This operator key only reads; make one that may change things in the operator's pages.")


def require_operator(user: Person, *, changes: bool = False) -> User:
    """Operator pages and paths do not exist for anyone else, a management key of an operator included.

    `changes`: the act is not one for an operator key that only reads.
    """
    if not (user.is_authenticated and user.is_staff and user.management_key is None):
        raise Http404
    if changes and user.operator_key is not None and not user.operator_key.may_change:
        raise ReadOnlyKey
    return user
