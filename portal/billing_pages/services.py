"""Acts on an organization's money that people do, each with its audit event in the same transaction."""

from __future__ import annotations

from django.db import transaction

from billing.accounts import selectors as accounts
from billing.accounts import services as billing_accounts
from billing.ledger import services as ledger
from portal.audit.services import record_event
from portal.organizations.models import Organization
from portal.users.models import User


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
    )


@transaction.atomic
def change_credit_limit(*, organization: Organization, credit_limit_nano: int, actor: User, reason: str) -> None:
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
