"""Web origins: from which sites a browser may call models with an organization's keys."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from django.utils.translation import gettext_lazy as _

ORIGINS_LIMIT = 50
ORIGIN_LENGTH = 200
EXAMPLE = "https://app.example.com"


def parse_origin(text: str) -> str:
    """The origin as browsers write it. Raises ValueError that says what is wrong.

    Without TLS only this machine is taken, for development: on the way anybody could read the key.
    """
    text = text.strip()
    shown = repr(text[:ORIGIN_LENGTH])
    if "*" in text or text == "null":
        raise ValueError(
            _("%(shown)s would let every site in; name each origin, such as %(example)s.")
            % {"shown": shown, "example": EXAMPLE}
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        host = host if ":" in host else host.encode("idna").decode()
    except ValueError:
        raise ValueError(
            _("%(shown)s is no origin such as %(example)s.") % {"shown": shown, "example": EXAMPLE}
        ) from None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None or len(text) > ORIGIN_LENGTH:
        raise ValueError(_("%(shown)s is no origin such as %(example)s.") % {"shown": shown, "example": EXAMPLE})
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(
            _("%(shown)s is more than an origin; leave out what follows the host and port.") % {"shown": shown}
        )
    if parts.scheme == "http" and not _is_this_machine(host):
        raise ValueError(_("%(shown)s is not encrypted; use https, or http for localhost only.") % {"shown": shown})
    host = f"[{host}]" if ":" in host else host
    default_port = 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None and port != default_port else "")


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
