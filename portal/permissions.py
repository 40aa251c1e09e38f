"""What each role may do: the one table. `portal/access.py` enforces it; pages and the management API name a permission.

A new page or path names the permission it needs; a new role is one more entry here. Nothing else compares roles.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.organizations.roles import DESCRIPTIONS, Role


class Permission(StrEnum):
    VIEW = "view"
    """Home, models, limits, usage, members, keys without their secrets, billing: what every member sees."""
    USE_PLAYGROUND = "use_playground"
    MANAGE_KEYS = "manage_keys"
    MANAGE_PROJECTS = "manage_projects"
    MANAGE_LIMITS = "manage_limits"
    MANAGE_BILLING = "manage_billing"
    """Billing details, payments, and everything else that concerns what is paid, and by whom."""
    VIEW_ALERTS = "view_alerts"
    MANAGE_ALERTS = "manage_alerts"
    """Alert rules, webhooks and their secrets."""
    VIEW_AUDIT = "view_audit"
    """Holds addresses and browsers of people, so not for everyone."""
    MANAGE_MEMBERS = "manage_members"
    MANAGE_SETTINGS = "manage_settings"
    MANAGE_MANAGEMENT_KEYS = "manage_management_keys"
    MANAGE_OWNERS = "manage_owners"
    """Make and remove owners, hand the organization over."""
    DELETE_ORGANIZATION = "delete_organization"


_VIEWER = frozenset({Permission.VIEW, Permission.VIEW_AUDIT, Permission.VIEW_ALERTS})
_DEVELOPER = frozenset({Permission.VIEW, Permission.VIEW_ALERTS, Permission.USE_PLAYGROUND, Permission.MANAGE_KEYS})
_BILLING = frozenset({Permission.VIEW, Permission.VIEW_ALERTS, Permission.MANAGE_BILLING, Permission.MANAGE_ALERTS})
_OWNER = frozenset(Permission)
_ADMIN = _OWNER - {Permission.MANAGE_OWNERS, Permission.DELETE_ORGANIZATION}

PERMISSIONS = MappingProxyType(
    {
        Role.OWNER: _OWNER,
        Role.ADMIN: _ADMIN,
        Role.BILLING: _BILLING,
        Role.DEVELOPER: _DEVELOPER,
        Role.VIEWER: _VIEWER,
    }
)

WORDS = MappingProxyType(
    {
        Permission.VIEW: _("see the organization"),
        Permission.USE_PLAYGROUND: _("use the playground"),
        Permission.MANAGE_KEYS: _("create and revoke API keys"),
        Permission.MANAGE_PROJECTS: _("create and change projects"),
        Permission.MANAGE_LIMITS: _("set limits"),
        Permission.MANAGE_BILLING: _("change billing details and pay"),
        Permission.VIEW_ALERTS: _("see alerts and deliveries"),
        Permission.MANAGE_ALERTS: _("set alerts and webhooks"),
        Permission.VIEW_AUDIT: _("read the audit log"),
        Permission.MANAGE_MEMBERS: _("invite, change and remove members"),
        Permission.MANAGE_SETTINGS: _("change the organization's settings"),
        Permission.MANAGE_MANAGEMENT_KEYS: _("create and revoke management keys"),
        Permission.MANAGE_OWNERS: _("make and remove owners"),
        Permission.DELETE_ORGANIZATION: _("delete or restore the organization"),
    }
)


def allows(role: Role, permission: Permission) -> bool:
    return permission in PERMISSIONS[role]


def roles_with(permission: Permission) -> list[Role]:
    """In the table's order: the strongest first."""
    return [role for role, permissions in PERMISSIONS.items() if permission in permissions]


def may_grant(granter: Role, role: Role) -> bool:
    """Whether someone with the role `granter` may give, change or take `role`, for people and for management keys."""
    return PERMISSIONS[role] <= PERMISSIONS[granter]


def role_choices(granter: Role) -> list[tuple[str, str | Promise, str | Promise]]:
    """What someone with the role `granter` may give: each role with its name and what it means."""
    return [(role.value, role.label, DESCRIPTIONS[role]) for role in Role if may_grant(granter, role)]
