"""Acts on an organization's money that people do, each with its audit event in the same transaction."""

from __future__ import annotations

from django.core.cache import cache
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.accounts import selectors as accounts
from billing.accounts import services as billing_accounts
from billing.credits import promo, recharge, topups
from billing.credits.models import TopUp
from billing.errors import PaymentsNotConfigured, PromoCodeRefused
from billing.exports import services as exports
from billing.exports.models import Export
from billing.ledger import services as ledger
from billing.ledger.models import CreditGrant
from billing.ledger.reasons import parse_reason
from billing.payments.configuration import configured_gateway, takes_payments
from billing.payments.services import payer_of
from portal.audit.services import record_event
from portal.organizations.models import Organization
from portal.users.models import User

# Wrong codes of an organization before it must wait.
PROMO_TRIES, PROMO_WAIT_S = 10, 3600


@transaction.atomic
def grant_credit(*, organization: Organization, amount_nano: int, reason: str, key: str, actor: User) -> None:
    """Once per `key`: a repeat, such as a form sent twice, gives nothing more."""
    grant = ledger.grant_credit(
        organization_id=organization.id, amount_nano=amount_nano, reason=reason, key=key, actor_id=actor.id
    )
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="credit.granted",
        subject=grant,
        label=organization.name,
        after={"amount_nano": amount_nano},
        reason=reason,
        once=True,
    )


@transaction.atomic
def change_credit_limit(*, organization: Organization, credit_limit_nano: int, actor: User | None, reason: str) -> None:
    before = accounts.account_of(organization.id).credit_limit_nano
    if before == credit_limit_nano:
        return
    billing_accounts.change_credit_limit(organization_id=organization.id, credit_limit_nano=credit_limit_nano)
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="billing.terms_changed",
        subject=organization,
        before={"credit_limit_nano": before},
        after={"credit_limit_nano": credit_limit_nano},
        reason=reason,
    )


@transaction.atomic
def change_billing_details(*, organization: Organization, address: dict[str, str], actor: User) -> None:
    account = accounts.account_of(organization.id)
    before = {name: getattr(account, name) for name in address}
    if before == address:
        return
    billing_accounts.change_address(organization_id=organization.id, fields=address)
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="billing.details_changed",
        subject=organization,
        before=before,
        after=address,
    )


def buy_credit(
    *, organization: Organization, amount_minor: int, keeps_card: bool, key: str, return_url: str, actor: User
) -> TopUp:
    """A payment page for credit. Nothing is bought yet: the payment is what the ledger will know.

    Once per `key`: a repeat answers with the same purchase and leaves no second event.
    """
    top_up = topups.open_checkout(
        organization_id=organization.id,
        amount_minor=amount_minor,
        key=key,
        keeps_card=keeps_card,
        return_url=return_url,
        actor_id=actor.id,
    )
    # Not in one transaction with the purchase, which waits for the provider.
    with transaction.atomic():
        record_event(
            organization_id=organization.id,
            actor=actor,
            action="credit.checkout_opened",
            subject=top_up,
            after={"amount_minor": amount_minor, "currency": top_up.currency},
            once=True,
        )
    return top_up


def redeem_code(*, organization: Organization, text: str, actor: User) -> CreditGrant:
    """The code's credit. Wrong codes are counted: whoever tries too many waits. Raises PromoCodeRefused."""
    tries_key = f"promo-tries:{organization.id}"
    if cache.get(tries_key, 0) >= PROMO_TRIES:
        raise PromoCodeRefused("too_many_tries", str(_("Too many wrong codes. Try again in an hour.")))
    try:
        return _redeem_code(organization, text, actor)
    except PromoCodeRefused:
        cache.add(tries_key, 0, timeout=PROMO_WAIT_S)
        cache.incr(tries_key)
        raise


@transaction.atomic
def _redeem_code(organization: Organization, text: str, actor: User) -> CreditGrant:
    grant = promo.redeem(organization_id=organization.id, text=text, actor_id=actor.id, now=timezone.now())
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="credit.code_redeemed",
        subject=grant,
        label=parse_reason(grant.reason)[1],
        after={"amount_nano": grant.amount_nano},
    )
    return grant


@transaction.atomic
def change_auto_recharge(
    *,
    organization: Organization,
    is_enabled: bool,
    threshold_minor: int,
    amount_minor: int,
    monthly_ceiling_minor: int,
    actor: User,
) -> None:
    rule = recharge.set_auto_recharge(
        organization_id=organization.id,
        is_enabled=is_enabled,
        threshold_minor=threshold_minor,
        amount_minor=amount_minor,
        monthly_ceiling_minor=monthly_ceiling_minor,
    )
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="credit.auto_recharge_changed",
        subject=rule,
        label=organization.name,
        after={
            "is_enabled": is_enabled,
            "threshold_minor": threshold_minor,
            "amount_minor": amount_minor,
            "monthly_ceiling_minor": monthly_ceiling_minor,
        },
    )


def payment_page(*, organization: Organization, return_url: str) -> str:
    """A link to the provider's own page, for this person now."""
    if not takes_payments():
        raise PaymentsNotConfigured
    return configured_gateway().portal_link(payer_of(accounts.account_of(organization.id)), return_url)


@transaction.atomic
def change_language(*, organization: Organization, language: str, actor: User) -> None:
    before = accounts.account_of(organization.id).language
    if before == language:
        return
    billing_accounts.change_language(organization_id=organization.id, language=language)
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="billing.language_changed",
        subject=organization,
        before={"language": before},
        after={"language": language},
    )


@transaction.atomic
def request_export(
    *,
    organization: Organization,
    kind: str,
    file_format: str,
    period: str,
    group_by: str,
    project_id: int | None,
    api_key_id: int | None,
    model: str,
    end_user: str,
    actor: User,
) -> Export:
    export = exports.request_export(
        organization_id=organization.id,
        kind=kind,
        file_format=file_format,
        period=period,
        group_by=group_by,
        project_id=project_id,
        api_key_id=api_key_id,
        model=model,
        end_user=end_user,
        actor_id=actor.id,
    )
    record_event(
        organization_id=organization.id,
        actor=actor,
        action="usage.exported",
        subject=export,
        after={"kind": kind, "format": file_format, "period": period},
    )
    return export
