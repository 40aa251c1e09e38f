"""Changes of limits."""

from __future__ import annotations

from functools import partial

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.accounts.selectors import account_of
from portal.alerts.services import watch_soft_limits
from portal.api_keys.models import ApiKey
from portal.api_keys.services import announce
from portal.audit.services import record_event
from portal.errors import PortalError
from portal.organizations.models import Member, Organization, Project
from portal.quotas import snapshot
from portal.quotas.models import Mode, Quota, QuotaKind, Window
from portal.quotas.wording import limit_text
from portal.users.models import User


class QuotaOutOfScope(PortalError):
    code = "quota_out_of_scope"


class QuotaAboveCeiling(PortalError):
    code = "quota_above_ceiling"


class QuotaImposed(PortalError):
    code = "quota_imposed"

    def __init__(self) -> None:
        super().__init__(_("The operator of this service sets this limit for you; ask them to change it."))


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
    member: Member | None = None,
    model: str = "",
    mode: Mode = Mode.HARD,
) -> Quota | None:
    """Sets the limit of the organization, or of one of its projects, keys or members; None removes it.

    The gateways use it from their next request on. A repeat with the same limit and mode changes nothing. Raises
    QuotaAboveCeiling above what the organization's limit template imposes.
    """
    owned: tuple[Project | ApiKey | Member | None, ...] = (project, api_key, member)
    if any(row and row.organization_id != organization.id for row in owned):
        raise QuotaOutOfScope(_("A limit's project, key and member must belong to the organization."))
    # The organization's row is the lock of all its limits: two changes cannot both see "no row yet".
    Organization.objects.select_for_update().get(id=organization.id)
    which = {
        "organization": organization,
        "project": project,
        "api_key": api_key,
        "member": member,
        "model": model,
        "kind": kind,
        "window": window,
        "is_imposed": False,
    }
    if limit is not None:
        _check_ceiling(organization, kind, window, model, limit)
    quota = Quota.objects.filter(**which).first()
    before = (quota.limit, quota.mode) if quota else (None, None)
    after = (limit, mode) if limit is not None else (None, None)
    if before == after:
        return quota
    if limit is None:
        if quota:
            quota.delete()
        quota = None
    elif quota is None:
        quota = Quota.objects.create(**which, limit=limit, mode=mode)
    else:
        quota.limit, quota.mode, quota.changed_at = limit, mode, timezone.now()
        quota.save(update_fields=["limit", "mode", "changed_at"])
    if quota is not None and mode == Mode.SOFT:
        watch_soft_limits(organization, actor=actor)
    which_one = {
        "kind": kind.value,
        "window": window.value,
        "scope": next((str(row) for row in owned if row), organization.name),
        "model": model,
    }
    unit = "limit_nano" if kind == QuotaKind.SPEND else "limit"
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="quota.changed" if limit is not None else "quota.removed",
        subject=organization,
        label=f"{kind}:{window} of {which_one['scope']}" + (f", {model}" if model else ""),
        before={**which_one, unit: before[0], "mode": before[1]},
        after={**which_one, unit: after[0], "mode": after[1]},
        reason=reason,
    )
    if api_key is not None:
        transaction.on_commit(partial(announce, api_key.id))
    else:
        transaction.on_commit(partial(snapshot.publish, organization.id))
    return quota


def _check_ceiling(organization: Organization, kind: QuotaKind, window: Window, model: str, limit: int) -> None:
    """Calls under the limit come under the operator's as well: a higher one would promise what is refused."""
    imposed = Quota.objects.filter(
        organization=organization,
        is_imposed=True,
        mode=Mode.HARD,
        kind=kind,
        window=window,
        model__in={"", model},
        limit__lt=limit,
    )
    ceiling = imposed.order_by("limit").first()
    if ceiling is not None:
        currency = account_of(organization.id).currency
        text = limit_text(kind, window, ceiling.limit, currency)
        raise QuotaAboveCeiling(
            _("The operator of this service allows %(limit)s. Set it no higher, or ask the operator.") % {"limit": text}
        )


def remove_quota(*, quota: Quota, actor: User, reason: str = "") -> None:
    """Calls are no longer held back by it. A repeat changes nothing. Raises QuotaImposed for one of a template."""
    if quota.is_imposed:
        raise QuotaImposed
    change_quota(
        organization=quota.organization,
        kind=QuotaKind(quota.kind),
        window=Window(quota.window),
        limit=None,
        actor=actor,
        reason=reason,
        project=quota.project,
        api_key=quota.api_key,
        member=quota.member,
        model=quota.model,
    )
