"""Index of the app's tables; each lives in its domain package."""

from billing.accounts.models import BillingAccount
from billing.credits.models import AutoRecharge, FreeCreditClaim, PromoCode, PromoRedemption, Refund, TopUp
from billing.dunning.models import DunningStep
from billing.exports.models import Export
from billing.fees.models import RecurringFee
from billing.invoices.models import CreditNote, Invoice, InvoiceLine, InvoiceSeries
from billing.ledger.models import (
    CreditGrant,
    GrantBalance,
    LedgerAccount,
    LedgerEntry,
    LedgerTransaction,
    OrganizationBalance,
)
from billing.payments.models import InvoicePush, Payment, PaymentEvent
from billing.pricing.models import Discount, DiscountEnd, Price, VolumeTier
from billing.reconciliation.models import GatewayEnd, MatchHour, MatchRollup, PeriodClose, Receipt
from billing.rollups.models import (
    EndUserRollup,
    KeyRollup,
    MonthRollup,
    ProjectRollup,
    RollupPending,
    ServiceRollup,
    UsageRollup,
)
from billing.tax.models import TaxIdCheck, TaxRate
from billing.usage.models import RetiredMonth, UsageAdjustment, UsageRecord

__all__ = [
    "AutoRecharge",
    "BillingAccount",
    "CreditGrant",
    "CreditNote",
    "Discount",
    "DiscountEnd",
    "DunningStep",
    "EndUserRollup",
    "Export",
    "FreeCreditClaim",
    "GatewayEnd",
    "GrantBalance",
    "Invoice",
    "InvoiceLine",
    "InvoicePush",
    "InvoiceSeries",
    "KeyRollup",
    "LedgerAccount",
    "LedgerEntry",
    "LedgerTransaction",
    "MatchHour",
    "MatchRollup",
    "MonthRollup",
    "OrganizationBalance",
    "Payment",
    "PaymentEvent",
    "PeriodClose",
    "Price",
    "ProjectRollup",
    "PromoCode",
    "PromoRedemption",
    "Receipt",
    "RecurringFee",
    "Refund",
    "RetiredMonth",
    "RollupPending",
    "ServiceRollup",
    "TaxIdCheck",
    "TaxRate",
    "TopUp",
    "UsageAdjustment",
    "UsageRecord",
    "UsageRollup",
    "VolumeTier",
]
