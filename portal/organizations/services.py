"""Organizations, and who works in them."""

from __future__ import annotations

import secrets
from datetime import datetime
from functools import partial

from allauth.mfa.utils import is_mfa_enabled
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext_lazy as _

from billing.accounts.services import change_time_zone, open_account
from billing.credits.free import give_free_credit
from portal.api_keys import management
from portal.audit.services import record_event
from portal.errors import LastOwner, NameTaken, NotPossible
from portal.limit_templates.services import apply_default
from portal.organizations.models import Member, Organization, Project
from portal.organizations.roles import Role
from portal.quotas import snapshot
from portal.quotas.models import Quota
from portal.quotas.services import remove_quota
from portal.users.models import User


@transaction.atomic
def create_organization(*, owner: User, name: str, currency: str = "") -> Organization:
    """The organization with its owner, default project, billing account, the default limit template and, for an owner's
    first one, free credit.

    All or nothing. A repeat makes a second organization, without a second free credit: that is once per person.
    """
    organization = Organization.objects.create(name=name, slug=_free_slug(name))
    Member.objects.create(user=owner, organization=organization, role=Role.OWNER)
    Project.objects.create(organization=organization, name="Default", slug="default", is_default=True)
    open_account(organization_id=organization.id, email=owner.email, currency=currency)
    give_free_credit(organization_id=organization.id, email=owner.email, actor_id=owner.id)
    record_event(
        organization_id=organization.id,
        actor=owner,
        action="organization.created",
        subject=organization,
        after={"name": name, "slug": organization.slug},
    )
    apply_default(organization)
    transaction.on_commit(partial(snapshot.publish, organization.id))
    return organization


def _free_slug(name: str) -> str:
    """A slug nobody has: the name's own, else with four random characters. A race ends in the unique constraint."""
    base = slugify(name)[:50].strip("-") or "organization"
    slug = base
    while Organization.objects.filter(slug=slug).exists():
        slug = f"{base}-{secrets.token_hex(2)}"
    return slug


@transaction.atomic
def provide_first_organization(user: User) -> Organization:
    """What a person gets who has just proved their address, named in the language that they read.

    A repeat returns the organization they are already in.
    """
    User.objects.select_for_update().get(id=user.id)
    member = Member.objects.filter(user=user).select_related("organization").order_by("id").first()
    if member:
        return member.organization
    return create_organization(owner=user, name=_("%(name)s's organization") % {"name": user.get_short_name()})


@transaction.atomic
def change_settings(*, organization: Organization, name: str, time_zone: str, actor: User) -> None:
    """The slug stays, so that links keep working. The zone is also that of the invoice months."""
    before = {"name": organization.name, "time_zone": organization.time_zone}
    after = {"name": name, "time_zone": time_zone}
    if before == after:
        return
    organization.name, organization.time_zone = name, time_zone
    organization.save(update_fields=["name", "time_zone"])
    change_time_zone(organization_id=organization.id, time_zone=time_zone)
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="organization.changed",
        subject=organization,
        before=before,
        after=after,
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))


@transaction.atomic
def set_responses_kept(*, organization: Organization, are_kept: bool, actor: User) -> None:
    """Whether calls of the Responses API may be kept. The gateways follow at once; switched off, what is kept already
    is forgotten within the hour."""
    if organization.keeps_responses == are_kept:
        return
    organization.keeps_responses = are_kept
    organization.save(update_fields=["keeps_responses"])
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="organization.responses_kept" if are_kept else "organization.responses_not_kept",
        subject=organization,
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))


@transaction.atomic
def change_allowed_origins(*, organization: Organization, origins: list[str], actor: User) -> None:
    """`origins` as `parse_origin` gives them; they replace the present ones. The gateways follow at once."""
    before, after = organization.allowed_origins, list(dict.fromkeys(origins))
    if before == after:
        return
    organization.allowed_origins = after
    organization.save(update_fields=["allowed_origins"])
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="organization.origins_changed",
        subject=organization,
        before={"allowed origins": ", ".join(before) or None},
        after={"allowed origins": ", ".join(after) or None},
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))


@transaction.atomic
def set_two_factor_required(*, organization: Organization, is_required: bool, actor: User) -> None:
    """Members without a second factor are kept out until they set one up. Whoever asks for it has one themselves."""
    if is_required and not is_mfa_enabled(actor):
        raise NotPossible(
            _("Set up two-factor authentication for your own account first, or you would lock yourself out.")
        )
    changed = Organization.objects.filter(id=organization.id, requires_two_factor=not is_required).update(
        requires_two_factor=is_required
    )
    if not changed:
        return
    organization.requires_two_factor = is_required
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="organization.two_factor_changed",
        subject=organization,
        before={"requires two-factor authentication": not is_required},
        after={"requires two-factor authentication": is_required},
    )


@transaction.atomic
def rename_project(*, project: Project, name: str, actor: User) -> None:
    """The slug stays, so that scripts keep working. A repeat changes nothing."""
    before = project.name
    if before == name:
        return
    project.name = name
    project.save(update_fields=["name"])
    record_event(
        organization_id=project.organization_id,
        actor=actor,
        action="project.renamed",
        subject=project,
        before={"name": before},
        after={"name": name},
    )
    # A refusal names the project whose limit it is.
    transaction.on_commit(partial(snapshot.publish, project.organization_id))


@transaction.atomic
def create_project(*, organization: Organization, name: str, actor: User) -> Project:
    slug = slugify(name)[:60].strip("-") or "project"
    try:
        with transaction.atomic():
            project = Project.objects.create(organization=organization, name=name, slug=slug)
    except IntegrityError:
        raise NameTaken(name) from None
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="project.created",
        subject=project,
        after={"name": name, "slug": slug},
    )
    return project


@transaction.atomic
def archive_project(*, project: Project, actor: User, reason: str = "") -> None:
    """The gateways refuse its keys within two seconds, and no new ones are made for it. What it used stays. A repeat
    changes nothing."""
    if project.is_default:
        raise NotPossible(_("The default project cannot be archived: new keys belong to it unless another is chosen."))
    _set_archived(project, timezone.now(), actor, reason)


@transaction.atomic
def restore_project(*, project: Project, actor: User) -> None:
    """Its keys work again, unless they were revoked or have expired. A repeat changes nothing."""
    _set_archived(project, None, actor, "")


def _set_archived(project: Project, moment: datetime | None, actor: User, reason: str) -> None:
    changed = Project.objects.filter(id=project.id, archived_at__isnull=moment is not None).update(archived_at=moment)
    if not changed:
        return
    project.archived_at = moment
    record_event(
        organization_id=project.organization_id,
        actor=actor,
        action="project.archived" if moment else "project.restored",
        subject=project,
        reason=reason,
    )
    transaction.on_commit(partial(snapshot.publish, project.organization_id))


@transaction.atomic
def set_suspended(*, organization: Organization, is_suspended: bool, actor: User | None, reason: str) -> bool:
    """A suspended organization's calls are refused from the next snapshot on. False when it was so before."""
    changed = Organization.objects.filter(id=organization.id, suspended_at__isnull=is_suspended).update(
        suspended_at=timezone.now() if is_suspended else None
    )
    if not changed:
        return False
    organization.refresh_from_db(fields=["suspended_at"])
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="organization.suspended" if is_suspended else "organization.resumed",
        subject=organization,
        reason=reason,
    )
    transaction.on_commit(partial(snapshot.publish, organization.id))
    return True


def _require_another_owner(member: Member) -> None:
    """Locks the organization's owners, so that two who leave at once cannot both be the second-last."""
    owners = Member.objects.select_for_update().filter(organization=member.organization, role=Role.OWNER)
    if not [owner for owner in owners if owner.id != member.id]:
        raise LastOwner


@transaction.atomic
def change_role(*, member: Member, role: Role, actor: User) -> None:
    before = member.role
    if before == role:
        return
    if before == Role.OWNER:
        _require_another_owner(member)
    member.role = role
    member.save(update_fields=["role"])
    management.revoke_beyond(member=member, role=role, actor=actor)
    record_event(
        organization_id=member.organization_id,
        actor=actor,
        action="member.role_changed",
        subject=member,
        label=member.user.email,
        before={"role": before},
        after={"role": role.value},
    )


@transaction.atomic
def remove_member(*, member: Member, actor: User) -> None:
    """Their API keys stay, since a key belongs to its project; their management keys act in their name, and end. So do
    the limits of all keys that they made: set one of the key, where it has to be held back."""
    if member.role == Role.OWNER:
        _require_another_owner(member)
    for quota in Quota.objects.filter(member=member):
        remove_quota(quota=quota, actor=actor, reason="The member left")
    record_event(
        organization_id=member.organization_id,
        actor=actor,
        action="member.removed",
        subject=member,
        label=member.user.email,
        before={"role": member.role},
    )
    management.revoke_beyond(member=member, role=None, actor=actor)
    member.delete()
