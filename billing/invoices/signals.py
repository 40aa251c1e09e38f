"""`invoice_settled` is sent with `organization_id` and `now`, inside the transaction that makes an invoice paid."""

from __future__ import annotations

from django.dispatch import Signal

invoice_settled = Signal()
