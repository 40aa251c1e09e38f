"""Seals secrets that must be read again, such as those that sign webhooks: in the database they are of no use alone.

The key is derived from SECRET_KEY. With another SECRET_KEY nothing sealed before can be read.
"""

from __future__ import annotations

import base64
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class SealBroken(Exception):
    """Sealed under another SECRET_KEY, or changed since."""


@lru_cache(maxsize=4)
def _fernet(secret_key: str) -> Fernet:
    derived = HKDF(SHA256(), 32, salt=None, info=b"portal.sealing").derive(secret_key.encode())
    return Fernet(base64.urlsafe_b64encode(derived))


def seal(text: str) -> str:
    return _fernet(settings.SECRET_KEY).encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    try:
        return _fernet(settings.SECRET_KEY).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise SealBroken("A sealed secret cannot be read: was SECRET_KEY changed?") from None
