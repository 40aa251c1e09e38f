"""Changes of limits."""

from __future__ import annotations

from functools import partial

from django.db import transaction
from django.utils import timezone

from portal.api_keys.models import ApiKey
from portal.audit.services import record_event
from portal.errors import PortalError
from portal.organizations.models import Organization, Project
from portal.quotas import snapshot
from portal.quotas.models import Quota, QuotaKind, Window
from portal.users.models import User


class QuotaOutOfScope(PortalError):
    code = "quota_out_of_scope"


@transaction.atomic
def change_quota(
    *,
    organization: Organization,
    kind: QuotaKind,
    window: Window,
    limit: int | None,
    actor: User,
    reason: str = "",
    project: Project | None = None,
    api_key: ApiKey | None = None,
) -> Quota | None:
    """Sets the limit of the organization, or of one of its projects or keys; None removes it.

    The gateways use it from their next request on. A repeat with the same limit changes nothing.
    """
    if any(owned and owned.organization_id != organization.id for owned in (project, api_key)):
        raise QuotaOutOfScope("A limit's project and key must belong to the organization.")
    # The organization's row is the lock of all its limits: two changes cannot both see "no row yet".
    Organization.objects.select_for_update().get(id=organization.id)
    quota = Quota.objects.filter(
        organization=organization, project=project, api_key=api_key, kind=kind, window=window
    ).first()
    before = quota.limit if quota else None
    if before == limit:
        return quota
    if limit is None:
        if quota:
            quota.delete()
        quota = None
    elif quota is None:
        quota = Quota.objects.create(
            organization=organization, project=project, api_key=api_key, kind=kind, window=window, limit=limit
        )
    else:
        quota.limit, quota.changed_at = limit, timezone.now()
        quota.save(update_fields=["limit", "changed_at"])
    scope = project.name if project else str(api_key) if api_key else organization.name
    unit = "limit_nano" if kind == QuotaKind.SPEND else "limit"
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="quota.changed" if limit is not None else "quota.removed",
        subject=organization,
        label=f"{kind.label} {window.label} of {scope}",
        before={unit: before},
        after={unit: limit},
        reason=reason,
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))
    return quota
