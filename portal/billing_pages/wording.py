"""What billing booked and why, in the reader's language: the ledger keeps codes, and the words are chosen here."""

from __future__ import annotations

import re

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
# As they were written before there were codes; what it is about is the group.
_WRITTEN = {
    Reason.FREE_CREDIT: "Free credit",
    Reason.CREDIT_BOUGHT: "Credit bought",
    Reason.AUTO_RECHARGE: "Auto-recharge",
    Reason.CREDIT_EXPIRED: "credit expired",
    Reason.PROMO_CODE: r"Code ([A-Z0-9-]+: .+)",
    Reason.TOP_UP_TAX: r"tax of top-up (\d+)",
    Reason.INVOICE_ROUNDING: r"rounding of invoice (\d+)",
    Reason.INVOICE_FEES: r"fees of invoice (\d+)",
    Reason.INVOICE_TAX: r"tax of invoice (\d+)",
    Reason.INVOICE_PAYMENT: r"payment of invoice (\S+)",
    Reason.CREDIT_NOTE: r"credit note (\S+: .+)",
    Reason.RECEIPT: r"receipt (.+#\d+)",
    Reason.VOLUME: r"([\d,]+) tokens last month",
}


def _parse(stored: str) -> tuple[Reason | None, str]:
    for reason, written in _WRITTEN.items():
        if found := re.fullmatch(written, stored):
            return reason, "".join(found.groups())
    return parse_reason(stored)


def reason_text(stored: str) -> str:
    """The words of a code; what a person typed as it is."""
    reason, about = _parse(stored)
    if reason is None:
        return about
    if reason is Reason.VOLUME:
        about = number_format(int(about.replace(",", "")), force_grouping=True)
    return str(REASONS[reason]) % {"about": about}
