"""One POST to an address that a customer chose: it must not become a way into the operator's own network.

The name is resolved here, every address it has must be public, and the connection goes to one of exactly those: a name
that resolves differently a moment later changes nothing. Redirects are not followed; answers are read up to a limit.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from django.utils.translation import gettext_lazy as _

from portal.client_address import Address

TIMEOUT_S = 5.0
ANSWER_LIMIT_BYTES = 2048
_NAT64 = (0x64_FF9B << 96, 96)


class TargetRefused(ValueError):
    """The address may not be called; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status` is None when there was no answer; `error` is empty after a 2xx."""

    status: int | None
    error: str
    duration_ms: int


def is_public(address: Address) -> bool:
    """Whether it is on the open internet. IPv6 forms that carry an IPv4 address are as public as that one is."""
    if isinstance(address, IPv6Address):
        number, bits = _NAT64
        if int(address) >> (128 - bits) == number >> (128 - bits):
            return is_public(ip_address(int(address) & 0xFFFF_FFFF))
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


def check_url(url: str, *, allow_private: bool) -> SplitResult:
    """The parts of an address that may be written down as a target. Raises TargetRefused. Asks no name server."""
    parts = urlsplit(url)
    schemes = ("https", "http") if allow_private else ("https",)
    if parts.scheme not in schemes:
        raise TargetRefused(
            _("The address must begin with %(schemes)s.") % {"schemes": ", ".join(f"{scheme}://" for scheme in schemes)}
        )
    if not parts.hostname:
        raise TargetRefused(_("The address names no host."))
    if parts.username is not None or parts.password is not None:
        raise TargetRefused(_("The address must not hold a user name or password; check the signature instead."))
    try:
        port = parts.port
    except ValueError:
        raise TargetRefused(_("The port must be a number from 1 to 65535.")) from None
    if port == 0:
        raise TargetRefused(_("The port must be a number from 1 to 65535."))
    return parts


def resolve(parts: SplitResult, *, allow_private: bool) -> list[tuple[int, tuple[object, ...]]]:
    """(family, socket address) of each address of the host. Raises TargetRefused when one is not public."""
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise TargetRefused(_("%(host)s cannot be resolved.") % {"host": parts.hostname}) from None
    for *_rest, where in found:
        # A scope such as %eth0 belongs to link-local addresses only.
        if not allow_private and not is_public(ip_address(str(where[0]).partition("%")[0])):
            raise TargetRefused(
                _("%(host)s is an address inside a private network; webhooks go to public ones.")
                % {"host": parts.hostname}
            )
    return [(family, where) for family, _, _, _, where in found]


def _connect(parts: SplitResult, *, allow_private: bool) -> socket.socket:
    error: OSError | None = None
    for family, where in resolve(parts, allow_private=allow_private):
        plain = socket.socket(family, socket.SOCK_STREAM)
        plain.settimeout(TIMEOUT_S)
        try:
            plain.connect(where)
            if parts.scheme == "http":
                return plain
            return ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname)
        except OSError as caught:
            plain.close()
            error = caught
    raise error or OSError("no address")


def post(url: str, body: bytes, headers: dict[str, str], *, allow_private: bool) -> Outcome:
    """Sends the body once. Every failure is an outcome, never an exception."""
    began = time.monotonic()

    def outcome(status: int | None, error: str) -> Outcome:
        return Outcome(status, error[:200], int((time.monotonic() - began) * 1000))

    try:
        parts = check_url(url, allow_private=allow_private)
        sock = _connect(parts, allow_private=allow_private)
    except TargetRefused as error:
        return outcome(None, str(error))
    except (OSError, ssl.SSLError) as error:
        return outcome(None, f"No connection: {_reason(error)}")
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 0, timeout=TIMEOUT_S)
    connection.sock = sock
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    try:
        connection.request("POST", target, body, {**headers, "host": f"{host}:{parts.port}" if parts.port else host})
        answer = connection.getresponse()
        answer.read(ANSWER_LIMIT_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return outcome(None, f"No answer: {_reason(error)}")
    finally:
        connection.close()
    if 200 <= answer.status < 300:
        return outcome(answer.status, "")
    if 300 <= answer.status < 400:
        return outcome(answer.status, f"Answered {answer.status}: redirects are not followed; give the final address.")
    return outcome(answer.status, f"Answered {answer.status}.")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came within {TIMEOUT_S:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
