"""Stripe's events: raw body and signature in, 2xx out. What an event means is billing's."""

from __future__ import annotations

import logging

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from billing.errors import EventRefused
from billing.payments import services

logger = logging.getLogger(__name__)


# The signature takes the place of the CSRF token.
@csrf_exempt
@require_POST
def stripe_webhook(request: HttpRequest) -> JsonResponse:
    """200 when the event is booked or kept, 400 when it is not Stripe's; any other failure is a 500 and comes again."""
    try:
        outcome = services.receive_event(request.body, request.headers.get("Stripe-Signature", ""))
    except EventRefused as error:
        logger.warning("payment_event_refused reason=%s", error)
        return JsonResponse({"error": {"code": error.code, "message": str(error)}}, status=400)
    return JsonResponse({"outcome": outcome.value})
