"""What each refusal and failure is called, for members and operators alike. What to do about it is told to each apart:
members by portal/quotas/refusals.py, operators by portal/operations/reasons.py."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

OTHER = _("Error of the service")
# By the codes of usage records, of refusals and of what engines answer (api/errors.py, inference_grpc/errors.py).
TITLES: dict[str, str | Promise] = {
    "missing_api_key": _("No API key"),
    "invalid_api_key": _("Unknown or revoked key"),
    "expired_api_key": _("Expired key"),
    "organization_suspended": _("Suspended organization"),
    "project_archived": _("Archived project"),
    "permission_denied": _("The key may not do this"),
    "invalid_request": _("Invalid request"),
    "invalid_json": _("Body is not JSON"),
    "context_length_exceeded": _("Prompt too long"),
    "unsupported_schema": _("Schema that cannot be enforced"),
    "unsupported_encoding": _("Compressed body"),
    "not_found": _("Unknown path"),
    "model_not_found": _("Unknown model"),
    "method_not_supported": _("Wrong method"),
    "conflict": _("Idempotency key of another call"),
    "request_timeout": _("Request sent too slowly"),
    "request_too_large": _("Body too large"),
    "rate_limit_requests": _("Limit on requests"),
    "rate_limit_tokens": _("Limit on tokens"),
    "rate_limit_concurrency": _("Limit on calls at one time"),
    "insufficient_quota": _("No credit, or a spend limit is reached"),
    "engine_overloaded": _("Model is busy"),
    "engine_unavailable": _("Model is away"),
    "engine_shutdown": _("Model is restarting"),
    "model_not_served": _("Engine serves another model"),
    "store_unavailable": _("A store of the service is away"),
    "shutting_down": _("Service is restarting"),
    "deadline_exceeded": _("Took too long"),
    "device_fault": _("Fault of a device"),
    "engine_error": _("Fault of an engine"),
    "upstream_error": _("Fault of an upstream"),
    "slow_reader": _("Stream read too slowly"),
    "lost": _("Lost on the way"),
    "server_error": OTHER,
}


def title_of(code: str) -> str | Promise:
    """Of every other code too: it is the service's own error."""
    return TITLES.get(code, OTHER)
