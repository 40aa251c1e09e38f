"""Opens and changes the payer's side of an organization."""

from __future__ import annotations

from functools import partial
from zoneinfo import available_timezones

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction

from billing.accounts.models import BillingAccount
from billing.errors import InvalidAccount, UnknownAccount
from billing.ledger.models import OrganizationBalance
from billing.ledger.posting import open_ledger_accounts
from billing.ledger.signals import announce
from billing.money import MINOR_DIGITS
from billing.tax.ids import parse as parse_tax_id

# Those that `invoices/wording.py` speaks.
LANGUAGES = {"en": "English", "de": "Deutsch", "fr": "Français", "es": "Español", "nl": "Nederlands"}

ADDRESS_FIELDS = (
    "email",
    "legal_name",
    "address_line1",
    "address_line2",
    "postal_code",
    "city",
    "region",
    "country",
    "tax_id",
)


@transaction.atomic
def open_account(*, organization_id: int, email: str, currency: str = "", time_zone: str = "UTC") -> BillingAccount:
    """The organization's billing account with its ledger accounts. A repeat returns the same, unchanged.

    `currency` empty: the first that is sold in. It cannot be changed later: what is booked is not converted.
    """
    currency = currency or str(settings.BILLING_CURRENCIES[0])
    if currency not in MINOR_DIGITS:
        raise InvalidAccount("currency", f"{currency!r} is not one of {', '.join(MINOR_DIGITS)}.")
    _check_time_zone(time_zone)
    account, is_new = BillingAccount.objects.get_or_create(
        organization_id=organization_id, defaults={"email": email, "currency": currency, "time_zone": time_zone}
    )
    if is_new:
        OrganizationBalance.objects.create(organization_id=organization_id)
        open_ledger_accounts(organization_id, currency)
    return account


@transaction.atomic
def change_address(*, organization_id: int, fields: dict[str, str]) -> BillingAccount:
    """Whom the next invoices are addressed to; issued ones keep their copy. `fields` is a part of ADDRESS_FIELDS."""
    account = lock_account(organization_id)
    for name, value in fields.items():
        if name not in ADDRESS_FIELDS:
            raise InvalidAccount(name, f"{name!r} is not an address field; they are {', '.join(ADDRESS_FIELDS)}.")
        setattr(account, name, value)
    try:
        account.clean_fields(exclude={field.name for field in account._meta.fields} - set(fields))
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise InvalidAccount(name, f"{name}: {messages[0]}") from error
    if {"tax_id", "country"} & fields.keys():
        found = parse_tax_id(account.country, account.tax_id)
        account.tax_id = found.value if found else ""
        transaction.on_commit(partial(_enqueue_check, organization_id), robust=True)
    account.save(update_fields=[*fields, "tax_id"])
    return account


@transaction.atomic
def change_language(*, organization_id: int, language: str) -> BillingAccount:
    """The language of the next invoices and reminders, with its way of writing dates and money."""
    if language not in LANGUAGES:
        raise InvalidAccount("language", f"{language!r} is not one of {', '.join(LANGUAGES)}.")
    account = lock_account(organization_id)
    account.language = language
    account.save(update_fields=["language"])
    return account


@transaction.atomic
def change_tax_exemption(*, organization_id: int, tax_exemption: str) -> BillingAccount:
    """Why this organization pays no tax, e.g. the number of its certificate; empty ends the exemption."""
    account = lock_account(organization_id)
    account.tax_exemption = tax_exemption.strip()
    account.save(update_fields=["tax_exemption"])
    return account


@transaction.atomic
def change_time_zone(*, organization_id: int, time_zone: str) -> BillingAccount:
    """The zone whose months are billed from the next draft on."""
    _check_time_zone(time_zone)
    account = lock_account(organization_id)
    account.time_zone = time_zone
    account.save(update_fields=["time_zone"])
    return account


@transaction.atomic
def change_credit_limit(*, organization_id: int, credit_limit_nano: int) -> BillingAccount:
    """0 makes the organization prepaid; above 0 it may owe up to there and is invoiced."""
    if credit_limit_nano < 0:
        raise InvalidAccount("credit_limit_nano", f"A credit limit cannot be below zero; {credit_limit_nano} is.")
    account = lock_account(organization_id)
    delta_nano = credit_limit_nano - account.credit_limit_nano
    account.credit_limit_nano = credit_limit_nano
    account.save(update_fields=["credit_limit_nano"])
    announce(organization_id, delta_nano)
    return account


def lock_account(organization_id: int) -> BillingAccount:
    """The account's row, locked in the caller's transaction."""
    account = BillingAccount.objects.select_for_update().filter(organization_id=organization_id).first()
    if account is None:
        raise UnknownAccount(organization_id)
    return account


def _enqueue_check(organization_id: int) -> None:
    from billing.tasks import check_tax_id

    check_tax_id.delay(organization_id)


def _check_time_zone(name: str) -> None:
    if name not in available_timezones():
        raise InvalidAccount("time_zone", f"{name!r} is not a time zone; use one such as Europe/Amsterdam.")
