"""Why calls of an organization were refused or failed, in its members' words, with the page that holds the way out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, Sum
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from portal.operations.models import RefusalCount
from portal.operations.titles import title_of


@dataclass(frozen=True, slots=True)
class Advice:
    """`page` is the URL name of the organization's page where something can be done; empty where nothing can."""

    remedy: str | Promise
    page: str = ""
    action: str | Promise = ""


@dataclass(frozen=True, slots=True)
class Reason(Advice):
    title: str | Promise = ""


_LIMITS = ("limits", _("See the limits"))
_CREDIT = ("billing", _("See the credit"))
_KEYS = ("api_keys", _("See the keys"))
_MODELS = ("catalog", _("See the models"))
_RULES = ("quickstart", _("See how to call"))
_REQUEST = _("The call itself has to change; the error's message names the field.")
_AGAIN = _("It passes by itself. The official clients try again; nothing was charged.")

# By the codes of usage records and of refusals (api/errors.py).
ADVICE: dict[str, Advice] = {
    "rate_limit_requests": Advice(
        _("Spread the calls, or have the limit raised. The answer says when to try again."),
        *_LIMITS,
    ),
    "rate_limit_tokens": Advice(
        _("Ask for fewer tokens, or have the limit raised. The answer says when to try again."),
        *_LIMITS,
    ),
    "rate_limit_concurrency": Advice(_("Wait until one under way ends, or have the limit raised."), *_LIMITS),
    "insufficient_quota": Advice(
        _("Add credit, or have the spend limit raised: the message says which."),
        *_CREDIT,
    ),
    "expired_api_key": Advice(_("Give the key a later last day, or make another."), *_KEYS),
    "invalid_api_key": Advice(_("Check which secret the program uses, or make another."), *_KEYS),
    "permission_denied": Advice(
        _("The key is held to other models, APIs or networks; change what it may do."),
        *_KEYS,
    ),
    "project_archived": Advice(
        _("Restore the project, or use a key of another one."),
        "settings",
        _("See the projects"),
    ),
    "organization_suspended": Advice(_("Ask the operator of this service."), *_CREDIT),
    "model_not_found": Advice(_("Use a name of the catalogue."), *_MODELS),
    "context_length_exceeded": Advice(
        _("Prompt and output together exceed the model's context; shorten one of them."),
        *_MODELS,
    ),
    "invalid_request": Advice(_REQUEST, *_RULES),
    "invalid_json": Advice(_REQUEST, *_RULES),
    "unsupported_schema": Advice(_REQUEST, *_RULES),
    "unsupported_encoding": Advice(_REQUEST, *_RULES),
    "request_too_large": Advice(_REQUEST, *_RULES),
    "not_found": Advice(_("Check the base URL."), *_RULES),
    "method_not_supported": Advice(_REQUEST, *_RULES),
    "conflict": Advice(
        _("Use a new key for a new call; a repeat gets the first answer."),
        *_RULES,
    ),
    "slow_reader": Advice(_("Read the stream as it comes."), *_RULES),
    "engine_overloaded": Advice(_AGAIN),
    "engine_unavailable": Advice(_AGAIN, *_MODELS),
    "engine_shutdown": Advice(_AGAIN, *_MODELS),
    "model_not_served": Advice(_AGAIN, *_MODELS),
    "store_unavailable": Advice(_AGAIN),
    "shutting_down": Advice(_AGAIN),
    "lost": Advice(_("The gateway ended before it could say how the call went.")),
    "deadline_exceeded": Advice(_("Ask for fewer tokens, and try again.")),
}
OTHER = Advice(
    _("The fault is not in your call. Try again; if it stays, send the request id to the operator."),
)


def reason_of(code: str) -> Reason:
    """What a code means; what has no advice of its own is the service's fault."""
    advice = ADVICE.get(code, OTHER)
    return Reason(advice.remedy, advice.page, advice.action, title_of(code))


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
