"""What a version would change for organizations, and what its limits would have refused last week."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.utils import timezone

from billing.accounts import selectors as accounts
from billing.pricing import selectors as pricing
from billing.pricing.models import Discount
from billing.usage.selectors import FinishedCall
from portal.limit_templates.content import Content, LimitKey, LimitValue, content_of, key_of, value_of
from portal.limit_templates.models import TemplateUse, TemplateVersion
from portal.organizations.models import Organization
from portal.quotas.models import Quota
from portal.quotas.replay import Replay, calls_of_week, replay
from portal.quotas.snapshot import new_limit

NOTHING = Content({})


@dataclass(frozen=True, slots=True)
class LimitChange:
    """None: no such limit from a template."""

    key: LimitKey
    before: LimitValue | None
    after: LimitValue | None


@dataclass(frozen=True, slots=True)
class Effect:
    """`credit_limit` and `discount` are before and after, where they change; a discount is in basis points, 0 for none.

    `running` is the template's discount that the organization has now.
    """

    organization: Organization
    currency: str
    use: TemplateUse | None
    limits: tuple[LimitChange, ...]
    credit_limit: tuple[int, int] | None
    discount: tuple[int, int] | None
    running: Discount | None

    @property
    def changes(self) -> bool:
        """Whether anything but the version that the organization has."""
        return bool(self.limits or self.credit_limit or self.discount)


def effects(organizations: Sequence[Organization], version: TemplateVersion | None) -> list[Effect]:
    """Of the version on each of these, or of taking their template away. Five queries at most."""
    wanted = NOTHING if version is None else content_of(version)
    ids = [organization.id for organization in organizations]
    uses = {
        use.organization_id: use
        for use in TemplateUse.objects.filter(organization_id__in=ids).select_related("version__template")
    }
    imposed: dict[int, dict[LimitKey, LimitValue]] = {number: {} for number in ids}
    for quota in Quota.objects.filter(organization_id__in=ids, is_imposed=True):
        imposed[quota.organization_id][key_of(quota)] = value_of(quota)
    terms = accounts.accounts_of(ids)
    discounts = pricing.running_discounts([use.discount_id or 0 for use in uses.values()], at=timezone.now())
    found = []
    for organization in organizations:
        use, has, account = uses.get(organization.id), imposed[organization.id], terms[organization.id]
        running = discounts.get(use.discount_id or 0) if use else None
        discount = (running.basis_points if running else 0, wanted.discount_basis_points or 0)
        credit_limit = (account.credit_limit_nano, wanted.credit_limit_nano)
        found.append(
            Effect(
                organization=organization,
                currency=account.currency,
                use=use,
                limits=tuple(
                    LimitChange(key, has.get(key), wanted.limits.get(key))
                    for key in sorted(has.keys() | wanted.limits.keys())
                    if has.get(key) != wanted.limits.get(key)
                ),
                credit_limit=None
                if credit_limit[1] is None or credit_limit[0] == credit_limit[1]
                else (credit_limit[0], credit_limit[1]),
                discount=discount if discount[0] != discount[1] else None,
                running=running,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Trial:
    """What a limit of the version would have refused of last week's calls."""

    change: LimitChange
    replay: Replay


def trials(effect: Effect) -> list[Trial]:
    """Of each limit that is new or changed, by itself. A query for each model that they name; calls of a week are
    read."""
    calls: dict[str, list[FinishedCall]] = {}
    found = []
    for change in effect.limits:
        if change.after is None:
            continue
        limit = new_limit(
            effect.organization,
            kind=change.key.kind,
            window=change.key.window,
            model=change.key.model,
            limit=change.after.limit,
            mode=change.after.mode,
        )
        if limit.model not in calls:
            calls[limit.model] = calls_of_week(effect.organization, limit)
        tried = replay(
            calls[limit.model],
            limit,
            effect.organization.time_zone,
            cached_percent=settings.CACHED_TOKEN_LIMIT_PERCENT,
        )
        found.append(Trial(change, tried))
    return found
