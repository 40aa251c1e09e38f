"""What billing refuses, each with a stable `code`. The edges map codes to their protocols."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.utils.translation import gettext as _


class BillingError(Exception):
    code = "billing_error"


class UnknownAccount(BillingError):
    code = "unknown_account"

    def __init__(self, organization_id: int) -> None:
        super().__init__(f"Organization {organization_id} has no billing account; open one with open_account.")
        self.organization_id = organization_id


class InvalidAccount(BillingError):
    """A field of the billing account is refused; `field` names it."""

    code = "invalid_account"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidPrice(BillingError):
    code = "invalid_price"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidTaxRate(BillingError):
    code = "invalid_tax_rate"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidFee(BillingError):
    code = "invalid_fee"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidAmount(BillingError):
    code = "invalid_amount"


class PromoCodeRefused(BillingError):
    """`code` says why: unknown, not_yet, ended, used_up, redeemed, other_currency."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = f"promo_code_{code}"


class PaymentsNotConfigured(BillingError):
    code = "payments_not_configured"

    def __init__(self) -> None:
        super().__init__(_("This service takes no payments online; ask its operator for credit."))


class NoCardKept(BillingError):
    code = "no_card_kept"

    def __init__(self) -> None:
        super().__init__(_("No card is kept for this organization; buy credit once and keep the card."))


class RefundRefused(BillingError):
    code = "refund_refused"


class CreditNoteRefused(BillingError):
    code = "credit_note_refused"


class ExportRefused(BillingError):
    code = "export_refused"


class KeyReused(BillingError):
    """The same idempotency key came with other content."""

    code = "key_reused"

    def __init__(self, key: str, what: str) -> None:
        super().__init__(
            _("%(key)s was used before for another %(what)s; take a new key for a new one.")
            % {"key": repr(key), "what": what}
        )
        self.key = key


class RecordRefused(BillingError):
    """An opening row cannot be written: its price, organization or currency does not fit."""

    code = "record_refused"

    def __init__(self, request_id: UUID, why: str) -> None:
        super().__init__(f"Usage record {request_id} cannot be opened: {why}.")
        self.request_id = request_id


class InvalidPeriod(BillingError):
    code = "invalid_period"

    def __init__(self, period: str) -> None:
        super().__init__(_("%(period)s is not a month; write it as YYYY-MM, e.g. 2026-11.") % {"period": repr(period)})
        self.period = period


class PeriodUnmatched(BillingError):
    """A month cannot be closed while calls of it are unmatched and nobody waives them."""

    code = "period_unmatched"

    def __init__(self, period: str, unmatched: int) -> None:
        super().__init__(
            _("%(unmatched)s calls of %(period)s are unmatched; repair them, or waive them with a reason.")
            % {"unmatched": f"{unmatched:,}", "period": period}
        )
        self.period = period
        self.unmatched = unmatched


class PeriodNotClosed(BillingError):
    """Invoices wait for the close of their month, and it is not closed."""

    code = "period_not_closed"

    def __init__(self, period: str) -> None:
        super().__init__(
            _("%(period)s is not closed in reconciliation, and INVOICE_REQUIRE_CLOSED_PERIOD is set: close it first.")
            % {"period": period}
        )
        self.period = period


class RetentionRefused(BillingError):
    """Old records cannot be removed yet."""

    code = "retention_refused"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} cannot be removed: {why}.")


class RecordsRetired(BillingError):
    """What was asked for needs records of single requests, which retention has removed."""

    code = "records_retired"

    def __init__(self, period: str, retired_at: datetime) -> None:
        super().__init__(
            f"The requests of {period} were removed on {retired_at:%Y-%m-%d} by the retention of usage records;"
            " invoices and daily sums are kept."
        )


class PeriodOpen(BillingError):
    code = "period_open"

    def __init__(self, period: str, time_zone: str) -> None:
        super().__init__(
            _("%(period)s is not over in %(time_zone)s; its invoice can be previewed, not finalized.")
            % {"period": period, "time_zone": time_zone}
        )
        self.period = period


class InvoiceStateRefused(BillingError):
    code = "invoice_state_refused"

    def __init__(self, invoice: str, old: str, new: str) -> None:
        super().__init__(
            _("Invoice %(invoice)s is %(old)s; it cannot become %(new)s.")
            % {"invoice": invoice, "old": old, "new": new}
        )
        self.old, self.new = old, new


class PaymentProviderError(BillingError):
    """The provider refused or did not answer. `is_retryable` says whether the same call may succeed later."""

    code = "payment_provider_error"

    def __init__(self, message: str, *, is_retryable: bool) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable


class EventRefused(BillingError):
    """A webhook body that is not a verified event of the provider."""

    code = "event_refused"


class JournalRestarted(BillingError):
    """A source sent another receipt under a sequence that it used before."""

    code = "journal_restarted"

    def __init__(self, source: str, sequence: int) -> None:
        super().__init__(
            f"Receipt {sequence} of {source!r} is not the one kept before: its journal started again. "
            "Give the new journal a name of its own."
        )
        self.source, self.sequence = source, sequence


class LedgerMismatch(BillingError):
    """The usage on an invoice and what the ledger says was paid for it differ: nothing is issued until they agree."""

    code = "ledger_mismatch"

    def __init__(self, usage_nano: int, ledger_nano: int) -> None:
        super().__init__(
            f"The records sum to {usage_nano} nano and their ledger transactions to {ledger_nano}; "
            "find the difference with `manage.py rebuild_balances --compare` before the invoice is issued."
        )


class UnknownInvoice(BillingError):
    code = "unknown_invoice"
