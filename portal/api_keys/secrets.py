"""The form of keys: a prefix that says what it is, 40 random base-62 characters, and 6 that prove it was not mistyped.

`sk-tf-` begins an API key, `sk-tf-admin-` a management key, `sk-tf-operator-` an operator's; secret scanners and our
own logs find all of them by it. Only the digest is stored, an HMAC under API_KEY_PEPPER: a copy of the database alone
lets nobody guess or check keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from enum import StrEnum

from django.conf import settings


class Kind(StrEnum):
    """The value is the prefix. `-` is in no body, so they cannot be taken for each other."""

    API = "sk-tf-"
    MANAGEMENT = "sk-tf-admin-"
    OPERATOR = "sk-tf-operator-"


PREFIX = Kind.API.value
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LENGTH = 40
CHECKSUM_LENGTH = 6
BODY_LENGTH = RANDOM_LENGTH + CHECKSUM_LENGTH
SHOWN_CHARACTERS = 5


def _checksum(body: str) -> str:
    """CRC-32 in base 62; six characters hold 35 bits."""
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        number, rest = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[rest])
    return "".join(reversed(digits))


def generate(kind: Kind = Kind.API) -> str:
    body = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return f"{kind}{body}{_checksum(body)}"


def _begins_as(secret: str) -> Kind:
    return next((kind for kind in (Kind.MANAGEMENT, Kind.OPERATOR) if secret.startswith(kind)), Kind.API)


def kind_of(secret: str) -> Kind | None:
    """What the text can be, so that a typo or a stranger's token costs no look-up. None: no key of ours."""
    if not secret.isascii():
        return None
    kind = _begins_as(secret)
    body = secret.removeprefix(kind)
    if not secret.startswith(kind) or len(body) != BODY_LENGTH:
        return None
    body, checksum = body[:RANDOM_LENGTH], body[RANDOM_LENGTH:]
    return kind if hmac.compare_digest(_checksum(body), checksum) else None


def looks_valid(secret: str) -> bool:
    """Whether the text can be an API key."""
    return kind_of(secret) is Kind.API


def digest(secret: str) -> str:
    return hmac.new(settings.API_KEY_PEPPER.encode(), secret.encode(), hashlib.sha256).hexdigest()


def shown_prefix(secret: str) -> str:
    """The part that may be shown again, enough to tell one's keys apart."""
    return secret[: len(_begins_as(secret)) + SHOWN_CHARACTERS]
