"""Who may read the development mailbox: whoever sits at a machine that serves itself alone.

The mails hold sign-in links, so on a reachable server the page would hand out accounts. It exists only when there is no
mail server, the public URL names this machine, and the request comes from it.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_mailbox_open(request: HttpRequest) -> bool:
    return (
        not settings.HAS_MAIL_SERVER
        and _is_loopback(urlsplit(settings.PUBLIC_URL).hostname or "")
        and _is_loopback(request.META.get("REMOTE_ADDR", ""))
        # A proxy in front would make every request look local.
        and "HTTP_X_FORWARDED_FOR" not in request.META
    )
