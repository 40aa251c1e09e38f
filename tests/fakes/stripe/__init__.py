"""A stateful Stripe, as far as invoices go, for the official client to talk to over HTTP.

Customers, products, prices, invoice items, invoices (draft, finalize, send, pay, void), credit notes, events and their
signed delivery, idempotency keys, and faults to order. Every request is checked against the client's own typed
parameters, so that a call Stripe would refuse is refused here.
"""

from tests.fakes.stripe.server import FakeStripe, Fault

__all__ = ["FakeStripe", "Fault"]
