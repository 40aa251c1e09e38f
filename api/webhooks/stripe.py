"""Stripe's events: raw body and signature in, 2xx out. A worker finds out what they mean."""

from __future__ import annotations

import logging

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from billing.errors import EventRefused
from billing.payments import events

logger = logging.getLogger(__name__)


# The signature takes the place of the CSRF token.
@csrf_exempt
@require_POST
def stripe_webhook(request: HttpRequest) -> JsonResponse:
    """200 once the event is kept, 400 when it is not Stripe's; any other failure is a 500 and it comes again."""
    try:
        event = events.receive_event(request.body, request.headers.get("Stripe-Signature", ""))
    except EventRefused as error:
        logger.warning("payment_event_refused reason=%s", error)
        return JsonResponse({"error": {"code": error.code, "message": str(error)}}, status=400)
    return JsonResponse({"outcome": event.outcome})
