"""Billing says when an organization is to be suspended for an unpaid invoice, and when that is over."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from billing.dunning.signals import suspension_due, suspension_over
from portal.organizations.models import Organization
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
