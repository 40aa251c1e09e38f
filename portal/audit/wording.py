"""How events are told in the reader's language: an event keeps codes and figures, and the words are chosen here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from django.conf import settings
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing.exports.models import ExportFormat, ExportKind
from portal.alerts.kinds import BudgetWindow, RuleKind
from portal.audit.models import AuditEvent
from portal.audit.services import SYSTEM
from portal.organizations.roles import Role
from portal.quotas.models import Mode
from portal.quotas.wording import KINDS, limit_name
from portal.templatetags.portal import cents, count, money, when

Text = str | Promise

ACTIONS: dict[str, Text] = {
    "api_key.issued": _("created the API key"),
    "api_key.revoked": _("revoked the API key"),
    "api_key.changed": _("changed the API key"),
    "api_key.rotated": _("rotated the API key"),
    "api_key.old_secret_ended": _("ended the old secret of"),
    "management_key.issued": _("created the management key"),
    "management_key.revoked": _("revoked the management key"),
    "organization.transferred": _("handed over"),
    "organization.deletion_requested": _("deleted"),
    "organization.restored": _("restored"),
    "organization.closed": _("closed"),
    "organization.origins_changed": _("changed the allowed origins of"),
    "organization.responses_kept": _("let responses be kept in"),
    "organization.responses_not_kept": _("stopped keeping responses in"),
    "organization.two_factor_changed": _("changed the sign-in rule of"),
    "organization.created": _("created the organization"),
    "organization.changed": _("changed the settings of"),
    "organization.suspended": _("suspended"),
    "organization.resumed": _("resumed"),
    "project.created": _("created the project"),
    "project.renamed": _("renamed the project"),
    "project.archived": _("archived the project"),
    "project.restored": _("restored the project"),
    "alert_rule.created": _("set the alert"),
    "alert_rule.removed": _("removed the alert"),
    "webhook.created": _("added the webhook"),
    "webhook.changed": _("changed the webhook"),
    "webhook.secret_rotated": _("rotated the secret of the webhook"),
    "webhook.removed": _("removed the webhook"),
    "webhook.resent": _("sent again to the webhook"),
    "session.ended": _("signed out a browser of"),
    "conversation.shared": _("shared the conversation"),
    "conversation.unshared": _("stopped sharing the conversation"),
    "member.invited": _("invited"),
    "member.invitation_withdrawn": _("withdrew the invitation of"),
    "member.joined": _("joined:"),
    "member.role_changed": _("changed the role of"),
    "member.removed": _("removed"),
    "quota.changed": _("set the limit"),
    "quota.removed": _("removed the limit"),
    "credit.granted": _("gave credit to"),
    "credit.checkout_opened": _("began to buy credit:"),
    "credit.code_redeemed": _("redeemed a code:"),
    "credit.auto_recharge_changed": _("changed the auto-recharge of"),
    "credit.refunded": _("refunded credit:"),
    "billing.terms_changed": _("changed the credit limit of"),
    "billing.details_changed": _("changed the billing details of"),
    "billing.language_changed": _("changed the language of the invoices of"),
    "billing.tax_exemption_changed": _("changed the tax exemption of"),
    "usage.exported": _("asked for the export"),
    "fee.agreed": _("agreed the fee"),
    "fee.ended": _("ended the fee"),
    "invoice.credited": _("issued the credit note"),
    "invoice.voided": _("voided the invoice"),
    "invoice.written_off": _("wrote off the invoice"),
    "invoice.payment_recorded": _("recorded the payment of"),
    "operator.made": _("made an operator of"),
    "operator.acting_started": _("began to act for"),
    "operator.acting_stopped": _("stopped acting for"),
    "operator_key.issued": _("created the operator key"),
    "operator_key.revoked": _("revoked the operator key"),
    "model.added": _("added the model"),
    "model.changed": _("changed the model"),
    "deployment.added": _("added the deployment"),
    "deployment.changed": _("changed the deployment"),
    "price.set": _("set a price of"),
    "price.discounted": _("gave a discount on"),
    "price.discount_ended": _("ended the discount"),
    "volume_tiers.changed": _("changed the volume tiers"),
    "limit_template.created": _("made the limit template"),
    "limit_template.changed": _("changed the limit template"),
    "limit_template.default_set": _("changed what new organizations begin with:"),
    "limit_template.applied": _("applied a limit template to"),
    "limit_template.withdrawn": _("took the limit template away from"),
    "limit_template.retired": _("retired the limit template"),
    "limit_template.restored": _("brought back the limit template"),
    "limit_template.run_started": _("began to apply to many the limit template"),
    "invoice_run.started": _("started the invoice run"),
    "invoice_run.retried": _("tried again in the invoice run"),
    "period.closed": _("closed the month"),
    "promo_code.made": _("made the promo code"),
    "promo_code.switched_on": _("switched on the promo code"),
    "promo_code.switched_off": _("switched off the promo code"),
    "tax_rate.set": _("set the tax rate"),
    "payment_event.replayed": _("replayed the payment event"),
}

# The names of what changed. A field of money is written in its column's unit, and named without it.
FIELDS: dict[str, Text] = {
    "address": _("Address"),
    "address_line1": _("Address"),
    "address_line2": _("Address, second line"),
    "allowed origins": _("Allowed origins"),
    "amount": _("Amount"),
    "api_key": _("API key"),
    "basis_points": _("Discount in hundredths of a percent"),
    "browser": _("Browser"),
    "cache_write": _("Price of writing to the cache"),
    "cached_input": _("Cached input price"),
    "calls": _("Calls"),
    "city": _("City"),
    "context_tokens": _("Context tokens"),
    "country": _("Country"),
    "credential_variable": _("Variable of the credential"),
    "credit_limit": _("Credit limit"),
    "currency": _("Currency"),
    "default_max_output_tokens": _("Default max output tokens"),
    "deletes_at": _("Closes"),
    "default": _("Default template"),
    "description": _("Description"),
    "display_name": _("Display name"),
    "effective_from": _("Effective from"),
    "effective_until": _("Effective until"),
    "email": _("E-mail"),
    "enabled": _("Switched on"),
    "ends_on": _("Ends"),
    "equal": _("Equal"),
    "event": _("Event"),
    "expires_at": _("Expires"),
    "format": _("Format"),
    "from": _("From"),
    "input": _("Input price"),
    "invoice": _("Invoice"),
    "is_enabled": _("Switched on"),
    "is_published": _("Published"),
    "kind": _("Kind"),
    "language": _("Language"),
    "legal_name": _("Legal name"),
    "limit": _("Limit"),
    "max_output_tokens": _("Max output tokens"),
    "max_redemptions": _("Redemptions at most"),
    "may change": _("May change"),
    "members": _("Members"),
    "minimum": _("Least price of a call"),
    "mode": _("Mode"),
    "model": _("Model"),
    "models": _("Models"),
    "monthly_ceiling": _("At most in a month"),
    "name": _("Name"),
    "networks": _("Networks"),
    "old secret signs until": _("Old secret signs until"),
    "old secret works until": _("Old secret works until"),
    "organizations": _("Organizations"),
    "output": _("Output price"),
    "owner": _("Owner"),
    "percent": _("Percent"),
    "period": _("Month"),
    "postal_code": _("Postal code"),
    "preview": _("Preview"),
    "project": _("Project"),
    "quantity": _("Quantity"),
    "reasoning": _("Price of reasoning"),
    "reference": _("Reference"),
    "region": _("State or region"),
    "requires two-factor authentication": _("Requires two-factor authentication"),
    "role": _("Role"),
    "routes": _("Routes"),
    "scope": _("Applies to"),
    "search": _("Search"),
    "secret": _("Secret"),
    "slug": _("Short name"),
    "starts_on": _("Begins"),
    "tax": _("Tax"),
    "tax_exemption": _("Tax exemption"),
    "tax_id": _("Tax number"),
    "template": _("Limit template"),
    "threshold": _("Threshold"),
    "thresholds": _("Thresholds"),
    "time_zone": _("Time zone"),
    "total": _("Total"),
    "unit_amount": _("Unit price"),
    "unmatched": _("Unmatched"),
    "until": _("Until"),
    "upstream_model": _("Upstream model"),
    "url": _("Address"),
    "version": _("Version"),
    "weight": _("Weight"),
    "window": _("Window"),
}
CODES: dict[str, Mapping[str, Text]] = {
    "role": {role.value: role.label for role in Role},
    "mode": {mode.value: mode.label for mode in Mode},
    "window": {window.value: window.label for window in BudgetWindow},
    "language": dict(settings.LANGUAGES),
    "kind": {**{kind.value: _(kind.label) for kind in ExportKind}, "engine": _("engine")},
    "format": {file_format.value: file_format.label for file_format in ExportFormat},
    **{field: {"all": _("all")} for field in ("models", "routes", "networks")},
}
# What the service itself gives as its reason; other reasons are what someone typed.
REASONS: dict[str, Text] = {
    "Budget of a new key": _("Budget of a new key"),
    "The organization was deleted": _("The organization was deleted"),
    "What was unpaid is paid.": _("What was unpaid is paid."),
    "Its maker no longer has the role it needs": _("Its maker no longer has the role it needs"),
}
_ALERTS = {kind.value: kind.label for kind in RuleKind}
# Of these subjects the fields that say which one it is: they are in its name, and no changes.
_NAMING = {"quota": ("kind", "window", "scope", "model"), "alert_rule": ("kind",), "usage": ("kind", "period")}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class Change:
    """Values are printed for the reader; None: there was nothing."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """An event as a sentence: actor, verb, subject; with the fields that changed."""

    event: AuditEvent
    actor: str
    verb: str
    subject: str
    reason: str
    changes: list[Change]


def describe(event: AuditEvent, currency: str = "USD") -> Told:
    """In the reader's language, zone and numbers. `currency` is the organization's, for amounts that name none."""
    before, after = event.before or {}, event.after or {}
    currency = str(after.get("currency") or before.get("currency") or currency)
    naming = _NAMING.get(event.action.partition(".")[0], ())
    changes = [
        Change(_field_name(field), *(_printed(field, values.get(field), currency) for values in (before, after)))
        for field in dict.fromkeys([*before, *after])
        if field not in naming and before.get(field) != after.get(field)
    ]
    return Told(
        event=event,
        actor=str(_("The service")) if event.actor_label == SYSTEM else event.actor_label,
        verb=str(ACTIONS.get(event.action, event.action)),
        subject=_subject(event, {**before, **after}),
        reason=str(REASONS.get(event.reason, event.reason)),
        changes=changes,
    )


def _subject(event: AuditEvent, facts: Mapping[str, Any]) -> str:
    """The name of what it is about; events of before the codes were kept have it in the language of then."""
    about = event.action.partition(".")[0]
    if about == "quota" and facts.get("kind") in KINDS:
        scope = f"{facts['scope']}, {facts['model']}" if facts["model"] else facts["scope"]
        what = limit_name(facts["kind"], facts["window"])
        return str(_("%(limit)s of %(scope)s") % {"limit": what, "scope": scope})
    if about == "alert_rule" and facts.get("kind") in _ALERTS:
        return str(_ALERTS[facts["kind"]])
    if about == "usage" and facts.get("kind") in CODES["kind"]:
        return f"{CODES['kind'][facts['kind']]} {facts['period']}"
    return "" if about == "volume_tiers" else event.subject_label


def _field_name(field: str) -> str:
    plain = field.removesuffix("_nano").removesuffix("_minor")
    if plain.isdecimal():
        return str(_("From %(tokens)s tokens") % {"tokens": count(int(plain))})
    return str(FIELDS.get(plain, plain.replace("_", " ")))


def _printed(field: str, value: Any, currency: str) -> str | None:
    if value in (None, ""):
        return None
    if isinstance(value, bool):
        return str(_("yes") if value else _("no"))
    if isinstance(value, int):
        if field.endswith("_nano"):
            return money(value, currency)
        return cents(value, currency) if field.endswith("_minor") else count(value)
    if isinstance(value, str):
        if field in CODES and value in CODES[field]:
            return str(CODES[field][value])
        return _moment(value) or value
    return str(value)


def _moment(text: str) -> str | None:
    """A moment or day that was written down, as the reader writes it; None: the text is none."""
    try:
        if _MOMENT.match(text):
            moment = datetime.fromisoformat(text.removesuffix(" UTC"))
            return when(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        return date_format(date.fromisoformat(text), str(_("j M Y"))) if _DAY.fullmatch(text) else None
    except ValueError:
        return None
