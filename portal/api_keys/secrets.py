"""The form of an API key: `sk-tf-`, 40 random base-62 characters, and 6 that prove it was not mistyped.

Only the digest is stored, an HMAC under API_KEY_PEPPER: a copy of the database alone lets nobody guess or check keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib

from django.conf import settings

PREFIX = "sk-tf-"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LENGTH = 40
CHECKSUM_LENGTH = 6
LENGTH = len(PREFIX) + RANDOM_LENGTH + CHECKSUM_LENGTH
SHOWN_LENGTH = len(PREFIX) + 5


def _checksum(body: str) -> str:
    """CRC-32 in base 62; six characters hold 35 bits."""
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        number, rest = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[rest])
    return "".join(reversed(digits))


def generate() -> str:
    body = "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return f"{PREFIX}{body}{_checksum(body)}"


def looks_valid(secret: str) -> bool:
    """Whether the text can be a key at all, so that a typo or a stranger's token costs no look-up."""
    if len(secret) != LENGTH or not secret.startswith(PREFIX) or not secret.isascii():
        return False
    body, checksum = secret[len(PREFIX) : -CHECKSUM_LENGTH], secret[-CHECKSUM_LENGTH:]
    return hmac.compare_digest(_checksum(body), checksum)


def digest(secret: str) -> str:
    return hmac.new(settings.API_KEY_PEPPER.encode(), secret.encode(), hashlib.sha256).hexdigest()


def shown_prefix(secret: str) -> str:
    """The part that may be shown again, enough to tell one's keys apart."""
    return secret[:SHOWN_LENGTH]
