"""`balance_changed` is sent after the commit with `organization_id` and `delta_nano`, for every change of a balance but
the settlement of usage, whose caller knows the cost already. Whoever keeps a copy of the balance listens."""

from __future__ import annotations

from functools import partial

from django.db import transaction
from django.dispatch import Signal

balance_changed = Signal()


def announce(organization_id: int, delta_nano: int) -> None:
    """Send the signal once the transaction has committed; a failing listener is logged and stops nobody."""
    transaction.on_commit(
        partial(balance_changed.send_robust, sender=None, organization_id=organization_id, delta_nano=delta_nano)
    )
