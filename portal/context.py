"""What every template may print about the service itself."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

from portal.mailbox.access import is_mailbox_open


def service(request: HttpRequest) -> dict[str, Any]:
    return {
        "public_url": settings.PUBLIC_URL,
        "api_base_url": settings.API_BASE_URL,
        "free_credit_nano": settings.FREE_CREDIT_NANO,
        "issuer_name": settings.OIDC_NAME if settings.OIDC_ISSUER else "",
        "has_mail_server": settings.HAS_MAIL_SERVER,
        "has_mailbox": is_mailbox_open(request),
    }
