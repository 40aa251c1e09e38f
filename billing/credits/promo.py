"""Promo codes: made by an operator, redeemed once per organization, and no oftener than they are worth."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from billing.accounts.services import lock_account
from billing.credits.models import PromoCode, PromoRedemption
from billing.errors import InvalidAmount, PromoCodeRefused
from billing.ledger.models import CreditGrant
from billing.ledger.reasons import Reason
from billing.ledger.services import grant_credit
from billing.money import MINOR_DIGITS

# Letters and digits that are not mistaken for each other.
_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def normalise(text: str) -> str:
    """As people type it: any case, spaces for dashes."""
    return "-".join(text.upper().split())


def random_code() -> str:
    """60 bits: nobody finds one by trying."""
    characters = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    return f"{characters[:4]}-{characters[4:8]}-{characters[8:]}"


@transaction.atomic
def make_code(
    *,
    code: str,
    description: str,
    amount_nano: int,
    currency: str,
    max_redemptions: int,
    valid_from: datetime,
    valid_until: datetime | None,
    credit_days: int | None,
    actor_id: int | None,
) -> PromoCode:
    """An empty `code` is made up. A code that exists is refused."""
    code = normalise(code) or random_code()
    if amount_nano <= 0 or max_redemptions <= 0:
        raise InvalidAmount(_("The amount and the number of redemptions must be above zero."))
    if currency not in MINOR_DIGITS:
        raise InvalidAmount(f"{currency!r} is not one of {', '.join(MINOR_DIGITS)}.")
    if valid_until is not None and valid_until <= valid_from:
        raise InvalidAmount(_("The code must end after it begins."))
    if PromoCode.objects.filter(code=code).exists():
        raise PromoCodeRefused("exists", _("The code %(code)s exists already; take another.") % {"code": code})
    return PromoCode.objects.create(
        code=code,
        description=description,
        amount_nano=amount_nano,
        currency=currency,
        max_redemptions=max_redemptions,
        valid_from=valid_from,
        valid_until=valid_until,
        credit_days=credit_days,
        actor_id=actor_id,
    )


def set_active(*, promo_code_id: int, is_active: bool) -> None:
    """A code that is off is refused as if it were unknown; what it gave stays."""
    PromoCode.objects.filter(id=promo_code_id).update(is_active=is_active)


@transaction.atomic
def redeem(*, organization_id: int, text: str, actor_id: int | None, now: datetime) -> CreditGrant:
    """Give the code's credit. Of many at once one gets it, and the last redemption goes to one organization.

    Raises PromoCodeRefused, whose code says why; an unknown and a switched-off code read the same.
    """
    account = lock_account(organization_id)
    code = PromoCode.objects.select_for_update().filter(code=normalise(text), is_active=True).first()
    if code is None:
        raise PromoCodeRefused("unknown", _("There is no such code. Check its letters and digits."))
    if PromoRedemption.objects.filter(promo_code=code, organization_id=organization_id).exists():
        raise PromoCodeRefused("redeemed", _("%(code)s was redeemed by this organization before.") % {"code": code})
    if now < code.valid_from:
        raise PromoCodeRefused(
            "not_yet",
            _("%(code)s is good from %(valid_from)s UTC on.")
            % {"code": code, "valid_from": f"{code.valid_from:%Y-%m-%d %H:%M}"},
        )
    if code.valid_until is not None and now >= code.valid_until:
        raise PromoCodeRefused(
            "ended",
            _("%(code)s ended on %(valid_until)s UTC.")
            % {"code": code, "valid_until": f"{code.valid_until:%Y-%m-%d %H:%M}"},
        )
    if code.redeemed_count >= code.max_redemptions:
        raise PromoCodeRefused("used_up", _("%(code)s was redeemed as often as it may be.") % {"code": code})
    if code.currency != account.currency:
        raise PromoCodeRefused(
            "other_currency",
            _("%(code)s gives %(currency)s; this account has %(own)s.")
            % {"code": code, "currency": code.currency, "own": account.currency},
        )
    PromoCode.objects.filter(id=code.id).update(redeemed_count=F("redeemed_count") + 1)
    grant = grant_credit(
        organization_id=organization_id,
        amount_nano=code.amount_nano,
        reason=Reason.PROMO_CODE.about(f"{code}: {code.description}"),
        key=f"promo:{code.id}:organization:{organization_id}",
        actor_id=actor_id,
        expires_at=now + timedelta(days=code.credit_days) if code.credit_days else None,
    )
    PromoRedemption.objects.create(
        promo_code=code, organization_id=organization_id, grant=grant, actor_id=actor_id, redeemed_at=now
    )
    return grant
