"""Why calls of an organization were refused or failed, in its members' words, with the page that holds the way out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, Sum
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.operations.models import RefusalCount


@dataclass(frozen=True, slots=True)
class Reason:
    """`page` is the URL name of the organization's page where something can be done; empty where nothing can."""

    title: str | Promise
    remedy: str | Promise
    page: str = ""
    action: str | Promise = ""


_LIMITS = ("limits", _("See the limits"))
_CREDIT = ("billing", _("See the credit"))
_KEYS = ("api_keys", _("See the keys"))
_MODELS = ("catalog", _("See the models"))
_RULES = ("quickstart", _("See how to call"))
_REQUEST = _("The call itself has to change; the error's message names the field.")
_AGAIN = _("It passes by itself. The official clients try again; nothing was charged.")

# By the codes of usage records and of refusals (api/errors.py).
REASONS: dict[str, Reason] = {
    "rate_limit_requests": Reason(
        _("Limit on requests"),
        _("Spread the calls, or have the limit raised. The answer says when to try again."),
        *_LIMITS,
    ),
    "rate_limit_tokens": Reason(
        _("Limit on tokens"),
        _("Ask for fewer tokens, or have the limit raised. The answer says when to try again."),
        *_LIMITS,
    ),
    "rate_limit_concurrency": Reason(
        _("Limit on calls at one time"), _("Wait until one under way ends, or have the limit raised."), *_LIMITS
    ),
    "insufficient_quota": Reason(
        _("No credit, or a spend limit is reached"),
        _("Add credit, or have the spend limit raised: the message says which."),
        *_CREDIT,
    ),
    "expired_api_key": Reason(_("Expired key"), _("Give the key a later last day, or make another."), *_KEYS),
    "invalid_api_key": Reason(
        _("Unknown or revoked key"), _("Check which secret the program uses, or make another."), *_KEYS
    ),
    "permission_denied": Reason(
        _("The key may not do this"),
        _("The key is held to other models, APIs or networks; change what it may do."),
        *_KEYS,
    ),
    "project_archived": Reason(
        _("Archived project"),
        _("Restore the project, or use a key of another one."),
        "settings",
        _("See the projects"),
    ),
    "organization_suspended": Reason(_("Suspended organization"), _("Ask the operator of this service."), *_CREDIT),
    "model_not_found": Reason(_("Unknown model"), _("Use a name of the catalogue."), *_MODELS),
    "context_length_exceeded": Reason(
        _("Prompt too long"),
        _("Prompt and output together exceed the model's context; shorten one of them."),
        *_MODELS,
    ),
    "invalid_request": Reason(_("Invalid request"), _REQUEST, *_RULES),
    "invalid_json": Reason(_("Body is not JSON"), _REQUEST, *_RULES),
    "unsupported_schema": Reason(_("Schema that cannot be enforced"), _REQUEST, *_RULES),
    "unsupported_encoding": Reason(_("Compressed body"), _REQUEST, *_RULES),
    "request_too_large": Reason(_("Body too large"), _REQUEST, *_RULES),
    "not_found": Reason(_("Unknown path"), _("Check the base URL."), *_RULES),
    "method_not_supported": Reason(_("Wrong method"), _REQUEST, *_RULES),
    "conflict": Reason(
        _("Idempotency key of another call"),
        _("Use a new key for a new call; a repeat gets the first answer."),
        *_RULES,
    ),
    "slow_reader": Reason(_("Stream read too slowly"), _("Read the stream as it comes."), *_RULES),
    "engine_overloaded": Reason(_("Model is busy"), _AGAIN),
    "engine_unavailable": Reason(_("Model is away"), _AGAIN, *_MODELS),
    "engine_shutdown": Reason(_("Model is restarting"), _AGAIN, *_MODELS),
    "model_not_served": Reason(_("Model is away"), _AGAIN, *_MODELS),
    "store_unavailable": Reason(_("Service is briefly away"), _AGAIN),
    "shutting_down": Reason(_("Service is restarting"), _AGAIN),
    "lost": Reason(_("Lost on the way"), _("The gateway ended before it could say how the call went.")),
    "deadline_exceeded": Reason(_("Out of time"), _("Ask for fewer tokens, and try again.")),
}
OTHER = Reason(
    _("Error of the service"),
    _("The fault is not in your call. Try again; if it stays, send the request id to the operator."),
)


def reason_of(code: str) -> Reason:
    """What a code means; every unknown one is the service's own fault."""
    return REASONS.get(code, OTHER)


@dataclass(frozen=True, slots=True)
class Refused:
    """So many calls were answered with an error before any work; `last` is the minute or hour of the latest one."""

    code: str
    count: int
    last: datetime

    @property
    def reason(self) -> Reason:
        return reason_of(self.code)


def refused_since(organization_id: int, start: datetime) -> list[Refused]:
    """By reason, the most frequent first; some seconds behind. One query."""
    rows = (
        RefusalCount.objects.filter(grain_s__in=(60, 3600), start__gte=start, organization_id=organization_id)
        .values("code")
        .annotate(total=Sum("count"), last=Max("start"))
        .order_by("-total", "code")
    )
    return [Refused(row["code"], row["total"], row["last"]) for row in rows]
