"""Index of the app's tables; each lives in its domain package."""

from billing.accounts.models import BillingAccount
from billing.invoices.models import Invoice, InvoiceLine, InvoiceSeries
from billing.ledger.models import (
    CreditGrant,
    GrantBalance,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    OrganizationBalance,
)
from billing.payments.models import InvoicePush, Payment, PaymentEvent
from billing.pricing.models import Price
from billing.reconciliation.models import Receipt
from billing.rollups.models import RollupPending, ServiceRollup, UsageRollup
from billing.usage.models import UsageAdjustment, UsageRecord

__all__ = [
    "BillingAccount",
    "CreditGrant",
    "GrantBalance",
    "Invoice",
    "InvoiceLine",
    "InvoicePush",
    "InvoiceSeries",
    "LedgerAccount",
    "LedgerEntry",
    "LedgerTransaction",
    "OrganizationBalance",
    "Payment",
    "PaymentEvent",
    "Price",
    "Receipt",
    "RollupPending",
    "ServiceRollup",
    "UsageAdjustment",
    "UsageRecord",
    "UsageRollup",
]
