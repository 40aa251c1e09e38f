"""What billing asks of the portal: to suspend an organization for an unpaid invoice, to release it, and for names."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from billing.dunning.signals import suspension_due, suspension_over
from billing.exports.names import Names, names_wanted
from portal.api_keys.models import ApiKey
from portal.organizations.models import Organization, Project
from portal.organizations.services import set_suspended


@receiver(suspension_due)
def suspend(organization_id: int, reason: str, **_: Any) -> bool:
    """False when a person suspended it before: then a payment does not release it."""
    organization = Organization.objects.get(id=organization_id)
    return set_suspended(organization=organization, is_suspended=True, actor=None, reason=reason)


@receiver(suspension_over)
def resume(organization_id: int, reason: str, **_: Any) -> None:
    organization = Organization.objects.get(id=organization_id)
    set_suspended(organization=organization, is_suspended=False, actor=None, reason=reason)


@receiver(names_wanted)
def name_parts(organization_id: int, **_: Any) -> Names:
    """Of projects, keys and who made these, also of those that are gone from the pages."""
    projects = Project.objects.filter(organization_id=organization_id)
    api_keys = ApiKey.objects.filter(organization_id=organization_id)
    return Names(
        organization=Organization.objects.values_list("name", flat=True).get(id=organization_id),
        projects=dict(projects.values_list("id", "name")),
        api_keys=dict(api_keys.values_list("id", "name")),
        key_makers={
            key_id: (user_id, name or email)
            for key_id, user_id, name, email in api_keys.filter(created_by__isnull=False).values_list(
                "id", "created_by", "created_by__name", "created_by__email"
            )
        },
    )
