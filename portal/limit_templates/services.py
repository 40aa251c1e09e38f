"""Changes of templates, and their way to organizations."""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import suppress
from functools import partial

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.errors import BillingError
from portal.alerts.services import watch_soft_limits
from portal.audit.services import record_event
from portal.billing_pages.services import change_credit_limit
from portal.catalog.services import discount_price, stop_discount
from portal.errors import NameTaken, NotPossible, PortalError
from portal.limit_templates import selectors
from portal.limit_templates.content import Content, content_of, key_of
from portal.limit_templates.effects import Effect, effects
from portal.limit_templates.models import LimitTemplate, TemplateLimit, TemplateRun, TemplateUse, TemplateVersion
from portal.operator.models import RunState
from portal.organizations.models import Organization
from portal.quotas import snapshot
from portal.quotas.models import Mode, Quota
from portal.users.models import User

logger = logging.getLogger(__name__)

# Well below the time after which the broker gives a task to another worker.
SLICE_S = 60.0
REPORT_EVERY = 25
FAILURES_KEPT = 50


@transaction.atomic
def make_template(*, name: str, content: Content, actor: User, reason: str = "") -> LimitTemplate:
    """Its first version; nobody has it yet. Raises NameTaken."""
    try:
        with transaction.atomic():
            template = LimitTemplate.objects.create(name=name)
    except IntegrityError:
        raise NameTaken(name) from None
    _write_version(template, 1, content, actor, reason)
    record_event(organization_id=None, actor=actor, action="limit_template.created", subject=template, reason=reason)
    return template


@transaction.atomic
def change_template(
    *, template: LimitTemplate, name: str, content: Content, actor: User, reason: str = ""
) -> TemplateVersion:
    """A new version, the newest from now on; whoever uses the template keeps theirs. The present one if nothing else
    is said. Raises NameTaken, and NotPossible for a retired template."""
    template = _locked(template)
    newest = selectors.newest_version(template)
    before, after = {"name": template.name}, {"name": name}
    if before != after:
        template.name = name
        try:
            with transaction.atomic():
                template.save(update_fields=["name"])
        except IntegrityError:
            raise NameTaken(name) from None
    version = newest
    if content != content_of(newest):
        version = _write_version(template, newest.number + 1, content, actor, reason)
    elif before == after:
        return newest
    record_event(
        organization_id=None,
        actor=actor,
        action="limit_template.changed",
        subject=template,
        before={**before, "version": newest.number},
        after={**after, "version": version.number},
        reason=reason,
    )
    return version


def _write_version(template: LimitTemplate, number: int, content: Content, actor: User, reason: str) -> TemplateVersion:
    version = TemplateVersion.objects.create(
        template=template,
        number=number,
        credit_limit_nano=content.credit_limit_nano,
        discount_basis_points=content.discount_basis_points,
        reason=reason,
        created_by=actor,
    )
    TemplateLimit.objects.bulk_create(
        TemplateLimit(
            version=version, kind=key.kind, window=key.window, model=key.model, limit=value.limit, mode=value.mode
        )
        for key, value in sorted(content.limits.items())
    )
    return version


@transaction.atomic
def set_default(*, template: LimitTemplate, is_default: bool, actor: User) -> None:
    """New organizations begin with the default; the one before is none any more. A repeat changes nothing. Raises
    NotPossible for a retired template."""
    if is_default:
        _locked(template)
    before = LimitTemplate.objects.select_for_update().filter(is_default=True).first()
    if (before == template) == is_default:
        return
    LimitTemplate.objects.filter(is_default=True).update(is_default=False)
    LimitTemplate.objects.filter(id=template.id).update(is_default=is_default)
    record_event(
        organization_id=None,
        actor=actor,
        action="limit_template.default_set",
        subject=template,
        before={"default": before.name if before else ""},
        after={"default": template.name if is_default else ""},
    )


def _locked(template: LimitTemplate) -> LimitTemplate:
    found = LimitTemplate.objects.select_for_update().get(id=template.id)
    if found.is_retired:
        raise _retired(found)
    return found


def _retired(template: LimitTemplate) -> NotPossible:
    return NotPossible(_("%(name)s is retired. Bring it back first.") % {"name": template.name})


@transaction.atomic
def retire_template(*, template: LimitTemplate, actor: User, reason: str) -> None:
    """It is given to nobody any more, new organizations included; who has it keeps its limits and its discount until
    another is applied or it is taken away. `restore_template` undoes it. A repeat changes nothing.

    Raises NotPossible while a run still gives it to organizations.
    """
    found = LimitTemplate.objects.select_for_update().get(id=template.id)
    if found.is_retired:
        return
    if selectors.is_running(found):
        raise NotPossible(_("A run still gives it to organizations. Retire it when that is over."))
    if found.is_default:
        set_default(template=found, is_default=False, actor=actor)
    LimitTemplate.objects.filter(id=found.id).update(retired_at=timezone.now())
    record_event(organization_id=None, actor=actor, action="limit_template.retired", subject=found, reason=reason)


@transaction.atomic
def restore_template(*, template: LimitTemplate, actor: User, reason: str) -> None:
    """A retired template can be given again; the default it is not any more. A repeat changes nothing."""
    if LimitTemplate.objects.filter(id=template.id, retired_at__isnull=False).update(retired_at=None):
        record_event(
            organization_id=None, actor=actor, action="limit_template.restored", subject=template, reason=reason
        )


@transaction.atomic
def apply_template(
    *, organization: Organization, version: TemplateVersion, actor: User | None, reason: str = ""
) -> bool:
    """The organization has this version from its next call on: its limits, and if it names them the credit limit and
    the discount. False, and nothing is changed, where that is so already.

    What was used of a limit in its window stays counted. Without an actor the service itself does it. Raises
    NotPossible for a retired template.
    """
    if LimitTemplate.objects.filter(id=version.template_id, retired_at__isnull=False).exists():
        raise _retired(version.template)
    effect = _locked_effect(organization, version)
    if not effect.changes and effect.use is not None and effect.use.version_id == version.id:
        return False
    _impose(effect, actor)
    if effect.credit_limit is not None:
        change_credit_limit(
            organization=organization, credit_limit_nano=effect.credit_limit[1], actor=actor, reason=str(version)
        )
    TemplateUse.objects.update_or_create(
        organization=organization,
        defaults={
            "version": version,
            "discount_id": _change_discount(effect, actor, str(version)),
            "applied_at": timezone.now(),
        },
    )
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="limit_template.applied",
        subject=organization,
        before={"template": str(effect.use.version) if effect.use else ""},
        after={"template": str(version)},
        reason=reason,
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))
    return True


@transaction.atomic
def withdraw_template(*, organization: Organization, actor: User, reason: str) -> None:
    """The template's limits are gone and its discount ends; the credit limit stays. A repeat changes nothing."""
    effect = _locked_effect(organization, None)
    if effect.use is None:
        return
    _impose(effect, actor)
    _change_discount(effect, actor, reason)
    effect.use.delete()
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="limit_template.withdrawn",
        subject=organization,
        before={"template": str(effect.use.version)},
        after={"template": ""},
        reason=reason,
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))


def apply_default(organization: Organization) -> None:
    """What a new organization begins with, where an operator has said so."""
    template = selectors.default_template()
    if template is None:
        return
    # One that is retired at this moment is no default any more.
    with suppress(NotPossible):
        apply_template(organization=organization, version=selectors.newest_version(template), actor=None)


def _locked_effect(organization: Organization, version: TemplateVersion | None) -> Effect:
    # The organization's row is the lock of all its limits, as in portal/quotas/services.py.
    Organization.objects.select_for_update().get(id=organization.id)
    return effects([organization], version)[0]


def _impose(effect: Effect, actor: User | None) -> None:
    """Rows are changed in place where they can be, so that counters go on."""
    organization, now = effect.organization, timezone.now()
    present = {key_of(row): row for row in Quota.objects.filter(organization=organization, is_imposed=True)}
    for change in effect.limits:
        row = present.get(change.key)
        if change.after is None:
            assert row is not None
            row.delete()
            continue
        row = row or Quota(
            organization=organization,
            is_imposed=True,
            kind=change.key.kind,
            window=change.key.window,
            model=change.key.model,
        )
        row.limit, row.mode, row.changed_at = change.after.limit, change.after.mode, now
        row.save()
    if any(change.after and change.after.mode == Mode.SOFT for change in effect.limits):
        watch_soft_limits(organization, actor=actor)


def _change_discount(effect: Effect, actor: User | None, reason: str) -> int | None:
    """The discount that runs from now on."""
    if effect.discount is None:
        return effect.running.id if effect.running else None
    _before, after = effect.discount
    if effect.running is not None:
        stop_discount(discount=effect.running, reason=reason, actor=actor)
    if not after:
        return None
    return discount_price(
        key=f"limit template {uuid.uuid4()}",
        model=None,
        organization=effect.organization,
        basis_points=after,
        effective_from=timezone.now(),
        effective_until=None,
        reason=reason,
        actor=actor,
    ).id


# Many organizations ---------------------------------------------------------------------------------


@transaction.atomic
def start_run(*, version: TemplateVersion, search: str, uses: str, actor: User, reason: str) -> TemplateRun:
    """Queues the version's way to all organizations that are selected. A second one changes nothing more.

    Raises NotPossible for a version that is not the newest: somebody has changed the template meanwhile; and for a
    retired template.
    """
    _locked(version.template)
    require_newest(version)
    run = TemplateRun.objects.create(
        version=version,
        search=search,
        uses=uses,
        reason=reason,
        started_by=actor,
        total=selectors.selected(search, uses).count(),
    )
    record_event(
        organization_id=None,
        actor=actor,
        action="limit_template.run_started",
        subject=version.template,
        after={"template": str(version), "organizations": run.total, "search": search},
        reason=reason,
    )
    transaction.on_commit(partial(_enqueue, run.id))
    return run


def require_newest(version: TemplateVersion) -> None:
    if selectors.newest_version(version.template).id != version.id:
        raise NotPossible(_("The template was changed meanwhile. Look at what its new version would change first."))


def _enqueue(run_id: int) -> None:
    from portal.tasks import apply_limit_template

    apply_limit_template.delay(run_id)


def execute_run(run_id: int) -> bool:
    """One slice of the run; True when more is to be done, which the caller enqueues.

    Each organization is a transaction of its own; a killed worker's run goes on where it was, and passes over what is
    done. A repeat of one that is over does nothing.
    """
    claimed = TemplateRun.objects.filter(id=run_id).exclude(state__in=[RunState.FINISHED, RunState.FAILED])
    if not claimed.update(state=RunState.RUNNING):
        return False
    run = TemplateRun.objects.select_related("version__template", "started_by").get(id=run_id)
    started = time.monotonic()
    left = selectors.selected(run.search, run.uses).filter(id__gt=run.position)
    is_complete = True
    for number, organization in enumerate(left.iterator(chunk_size=200), start=1):
        _apply_to(run, organization)
        if number % REPORT_EVERY == 0:
            run.save()
        if time.monotonic() - started > SLICE_S:
            is_complete = False
            break
    if is_complete:
        run.state, run.finished_at = RunState.FINISHED, timezone.now()
    run.save()
    return not is_complete


def _apply_to(run: TemplateRun, organization: Organization) -> None:
    try:
        is_changed = apply_template(
            organization=organization, version=run.version, actor=run.started_by, reason=run.reason
        )
        run.changed += is_changed
        run.unchanged += not is_changed
    except (PortalError, BillingError) as error:
        # The edge of one organization: counted with its reason, and the others go on.
        logger.warning("limit_template_refused organization_id=%s error=%s", organization.id, error)
        run.failed += 1
        if len(run.failures) < FAILURES_KEPT:
            run.failures.append([organization.slug, str(error)])
    run.position = organization.id
