"""Reads of organizations, members and projects."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from billing.usage import selectors as usage
from portal.organizations.models import Invitation, Member, Organization, Project
from portal.organizations.roles import Role
from portal.users.models import User

_PROJECT_ORDER = (F("archived_at").desc(nulls_first=True), "-is_default", "name")


def memberships_of(user: User) -> list[Member]:
    """With their organizations, oldest first. One query."""
    return list(Member.objects.filter(user=user).select_related("organization").order_by("id"))


def members_of(organization: Organization) -> list[Member]:
    return list(Member.objects.filter(organization=organization).select_related("user").order_by("joined_at", "id"))


def members(organization: Organization) -> QuerySet[Member]:
    """To be cut into pages."""
    return Member.objects.filter(organization=organization).select_related("user", "organization")


def owner_count(organization: Organization) -> int:
    return Member.objects.filter(organization=organization, role=Role.OWNER).count()


def projects(organization: Organization) -> QuerySet[Project]:
    """To be cut into pages."""
    return Project.objects.filter(organization=organization)


def all_allowed_origins() -> set[str]:
    """Every origin that some organization allows. One query, over the organizations that allow any."""
    lists = Organization.objects.exclude(allowed_origins=[]).values_list("allowed_origins", flat=True)
    return {origin for origins in lists for origin in origins}


def projects_of(organization: Organization) -> list[Project]:
    return list(projects_in_order(organization))


def projects_in_order(organization: Organization) -> QuerySet[Project]:
    """The default project first, archived ones last."""
    return projects(organization).order_by(*_PROJECT_ORDER, "id")


def active_keys(projects: Iterable[Project]) -> dict[int, int]:
    """How many keys of these projects work, by project; those without any are not there. One query."""
    works = Q(api_keys__expires_at=None) | Q(api_keys__expires_at__gt=timezone.now())
    of_these = Project.objects.filter(id__in=[each.id for each in projects])
    found = of_these.filter(works, api_keys__isnull=False, api_keys__revoked_at=None)
    return dict(found.values_list("id").annotate(Count("api_keys")))


def project_spend(organization: Organization, *, now: datetime) -> dict[int, int]:
    """What calls of this month cost, in nano-units, by project. The month is that of the organization's zone."""
    start = now.astimezone(ZoneInfo(organization.time_zone)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return {
        int(key): cost_nano for key, cost_nano in usage.costs(organization.id, start, now, "project").items() if key
    }


def active_projects_of(organization: Organization) -> list[Project]:
    """Those that keys can be made for; the default project first."""
    return [project for project in projects_of(organization) if not project.is_archived]


def invitations(organization: Organization) -> QuerySet[Invitation]:
    """The open ones, to be cut into pages."""
    open_ones = Invitation.objects.filter(
        organization=organization, accepted_at=None, closed_at=None, expires_at__gt=timezone.now()
    )
    return open_ones.select_related("invited_by")


def open_invitations(organization: Organization) -> list[Invitation]:
    return list(invitations(organization).order_by("-id"))


def search_organizations(text: str = "") -> QuerySet[Organization]:
    """Newest first, with the number of members; `text` is part of a name, a slug or a member's address."""
    # Counted for the rows of a page alone: a join would group all organizations first.
    members = Member.objects.filter(organization=OuterRef("id")).order_by().values("organization")
    found = Organization.objects.annotate(member_count=Coalesce(Subquery(members.values(count=Count("id"))), 0))
    found = found.order_by("-id")
    if text:
        by_address = Member.objects.filter(user__email__icontains=text).values("organization_id")
        found = found.filter(Q(name__icontains=text) | Q(slug__icontains=text) | Q(id__in=by_address))
    return found


def organization_by_slug(slug: str) -> Organization | None:
    """For the service's own use: pages of members go through portal.access."""
    return Organization.objects.filter(slug=slug).first()


def organizations_by_id(organization_ids: list[int]) -> dict[int, Organization]:
    return Organization.objects.in_bulk(organization_ids)
