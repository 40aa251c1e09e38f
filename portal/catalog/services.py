"""Publish models, bind deployments, set prices: what operators do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.money import format_nano
from billing.pricing.models import Discount, Price, VolumeTier
from billing.pricing.selectors import Tier, set_since, volume_tiers
from billing.pricing.services import end_discount, give_discount, set_price, set_volume_tiers
from portal.audit.services import record_event
from portal.catalog.models import Deployment, Model
from portal.errors import PortalError
from portal.organizations.models import Organization
from portal.users.models import User


class PriceChanged(PortalError):
    """The price was set since the one who sets it now has looked. `changes`: the versions, oldest first, and who set
    each; None is a command of the service."""

    code = "price_changed"

    def __init__(self, changes: Sequence[tuple[Price, User | None]]) -> None:
        self.changes = changes
        price, actor = changes[-1]
        amounts = [format_nano(amount, price.currency) for amount in (price.input_nano, price.output_nano)]
        super().__init__(
            f"The price was changed meanwhile, to {amounts[0]} and {amounts[1]} by {actor or 'the service'}, and is not"
            f" set. To replace it, send {price.id} as seen_price_id."
        )


def _fields(row: Model | Deployment, names: list[str]) -> dict[str, Any]:
    return {name: str(getattr(row, name)) if name == "model" else getattr(row, name) for name in names}


MODEL_FIELDS = [
    "name",
    "display_name",
    "description",
    "context_tokens",
    "default_max_output_tokens",
    "max_output_tokens",
    "is_published",
]
DEPLOYMENT_FIELDS = ["model", "kind", "address", "upstream_model", "credential_variable", "is_enabled", "weight"]


@transaction.atomic
def save_model(*, model: Model, actor: User | None) -> Model:
    """Adds or changes a model; the gateways see it within seconds. A repeat changes nothing."""
    before = _fields(Model.objects.get(id=model.id), MODEL_FIELDS) if model.id else None
    model.save()
    after = _fields(model, MODEL_FIELDS)
    if before != after:
        action = "model.changed" if before else "model.added"
        record_event(organization_id=None, actor=actor, action=action, subject=model, before=before, after=after)
    return model


@transaction.atomic
def save_deployment(*, deployment: Deployment, actor: User | None) -> Deployment:
    """Adds or changes where a model runs; the gateways follow within seconds. A repeat changes nothing."""
    before = _fields(Deployment.objects.get(id=deployment.id), DEPLOYMENT_FIELDS) if deployment.id else None
    deployment.save()
    after = _fields(deployment, DEPLOYMENT_FIELDS)
    if before != after:
        action = "deployment.changed" if before else "deployment.added"
        record_event(organization_id=None, actor=actor, action=action, subject=deployment, before=before, after=after)
    return deployment


@transaction.atomic
def change_price(
    *,
    model: Model,
    input_nano: int,
    cached_input_nano: int | None,
    output_nano: int,
    effective_from: datetime,
    actor: User | None,
    cache_write_nano: int | None = None,
    reasoning_nano: int | None = None,
    minimum_nano: int = 0,
    effective_until: datetime | None = None,
    organization: Organization | None = None,
    currency: str = "",
    seen_price_id: int | None = None,
) -> None:
    """A new version of the list price in a currency, or of one organization's in its own; earlier calls keep theirs.

    `seen_price_id` is the newest version that the actor knows of (`pricing.selectors.newest_id`): where the same price
    was set since, PriceChanged is raised and nothing is set. Raises InvalidPrice.
    """
    # Of two at once the second waits here, and sees what the first has set.
    Model.objects.select_for_update().get(id=model.id)
    if seen_price_id is not None:
        _refuse_unseen(model, organization, currency, seen_price_id)
    figures = {
        "input_nano": input_nano,
        "cached_input_nano": cached_input_nano,
        "output_nano": output_nano,
        "cache_write_nano": cache_write_nano,
        "reasoning_nano": reasoning_nano,
        "minimum_nano": minimum_nano,
    }
    set_price(
        model=model.name,
        effective_from=effective_from,
        effective_until=effective_until,
        actor_id=actor.id if actor else None,
        organization_id=organization.id if organization else None,
        currency="" if organization else currency,
        **figures,  # type: ignore[arg-type]  # the figures that may be None are those that may
    )
    record_event(
        organization_id=organization.id if organization else None,
        actor=actor,
        action="price.set",
        subject=model,
        after={
            **{
                name: value for name, value in figures.items() if value or name == "input_nano" or name == "output_nano"
            },
            **({"currency": currency} if currency and not organization else {}),
            "effective_from": effective_from.isoformat(),
            **({"effective_until": effective_until.isoformat()} if effective_until else {}),
        },
    )


def _refuse_unseen(model: Model, organization: Organization | None, currency: str, seen_price_id: int) -> None:
    organization_id = organization.id if organization else None
    found = set_since(
        seen_price_id, model.name, organization_id=organization_id, currency="" if organization else currency
    )
    if found:
        people = User.objects.in_bulk({price.actor_id for price in found if price.actor_id})
        raise PriceChanged([(price, people.get(price.actor_id or 0)) for price in found])


@transaction.atomic
def discount_price(
    *,
    key: str,
    model: Model | None,
    organization: Organization,
    basis_points: int,
    effective_from: datetime,
    effective_until: datetime | None,
    reason: str,
    actor: User | None,
) -> Discount:
    """So much off the model's list price, or off all, for one organization. Once per key: a repeat returns it.

    Raises InvalidPrice or KeyReused.
    """
    discount = give_discount(
        key=key,
        organization_id=organization.id,
        model=model.name if model else "",
        basis_points=basis_points,
        effective_from=effective_from,
        effective_until=effective_until,
        reason=reason,
        actor_id=actor.id if actor else None,
    )
    if discount.effective_from != effective_from:
        return discount
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="price.discounted",
        subject=model or discount,
        after={
            "basis_points": basis_points,
            "effective_until": effective_until.isoformat() if effective_until else None,
        },
        reason=reason,
    )
    return discount


@transaction.atomic
def stop_discount(*, discount: Discount, reason: str, actor: User | None) -> None:
    """It ends now; calls that began before keep their price. A repeat changes nothing. Raises InvalidPrice when it is
    over already."""
    now = timezone.now()
    end = end_discount(discount_id=discount.id, at=now, reason=reason, actor_id=actor.id if actor else None)
    if end.ends_at != now:
        return
    record_event(
        organization_id=discount.organization_id,
        actor=actor,
        action="price.discount_ended",
        subject=discount,
        before={
            "basis_points": discount.basis_points,
            "effective_until": discount.effective_until.isoformat() if discount.effective_until else None,
        },
        after={"effective_until": now.isoformat()},
        reason=reason,
    )


@transaction.atomic
def change_volume_tiers(*, tiers: Sequence[Tier], actor: User) -> None:
    """Replace the volume tiers; what this month was given stays. A repeat changes nothing. Raises InvalidPrice."""
    before = volume_tiers()
    set_volume_tiers(tiers)
    after = volume_tiers()
    if before != after:
        record_event(
            organization_id=None,
            actor=actor,
            action="volume_tiers.changed",
            # The tiers change as a whole; none of them is the subject.
            subject=VolumeTier(id=0),
            label="volume tiers",
            before={str(tier.from_tokens): tier.basis_points for tier in before},
            after={str(tier.from_tokens): tier.basis_points for tier in after},
        )
