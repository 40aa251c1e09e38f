"""What billing booked and why, in the reader's language: the ledger keeps codes, and the words are chosen here."""

from __future__ import annotations

from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from billing.ledger.reasons import Reason, parse_reason

REASONS: dict[Reason, str | Promise] = {
    Reason.FREE_CREDIT: _("Free credit"),
    Reason.CREDIT_BOUGHT: _("Credit bought"),
    Reason.AUTO_RECHARGE: _("Auto-recharge"),
    Reason.CREDIT_EXPIRED: _("Unused until its last day"),
    Reason.PROMO_CODE: _("Code %(about)s"),
    Reason.TOP_UP_TAX: _("Tax on the purchase of credit %(about)s"),
    Reason.INVOICE_ROUNDING: _("Invoices are in whole cents"),
    Reason.INVOICE_FEES: _("Fees on an invoice"),
    Reason.INVOICE_TAX: _("Tax on an invoice"),
    Reason.INVOICE_PAYMENT: _("Invoice %(about)s is paid"),
    Reason.CREDIT_NOTE: _("Credit note %(about)s"),
    Reason.RECEIPT: _("Corrected by the engine's receipt %(about)s"),
    Reason.VOLUME: _("%(about)s tokens last month"),
}
# As they were written before there were codes.
_WRITTEN = {
    "Free credit": Reason.FREE_CREDIT,
    "Credit bought": Reason.CREDIT_BOUGHT,
    "Auto-recharge": Reason.AUTO_RECHARGE,
    "credit expired": Reason.CREDIT_EXPIRED,
}


def reason_text(stored: str) -> str:
    """The words of a code; what a person typed as it is."""
    reason, about = parse_reason(_WRITTEN.get(stored, stored))
    if reason is None:
        return about
    if reason is Reason.VOLUME:
        about = number_format(int(about), force_grouping=True)
    return str(REASONS[reason]) % {"about": about}
