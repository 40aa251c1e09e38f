"""Sent inside the transaction, with `organization_id` and `reason`; whoever keeps the suspension listens.

A listener of `suspension_due` answers whether it suspended the organization: one that a person suspended before is not
dunning's to release.
"""

from __future__ import annotations

from django.dispatch import Signal

suspension_due = Signal()
suspension_over = Signal()
