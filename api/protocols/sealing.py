"""Opaque strings that a client carries for us: thinking signatures, encrypted reasoning, compacted conversations.

`configure` is called once at start with the installation's secret, so that every gateway process reads what another one
made. A sealed text says what it is for: one kind cannot be replayed as another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
_keys: dict[str, bytes] = {}


def configure(secret: str) -> None:
    for use in ("sign", "seal"):
        _keys[use] = hmac.digest(secret.encode(), b"api.protocols.sealing/" + use.encode(), hashlib.sha256)


def _key(use: str) -> bytes:
    try:
        return _keys[use]
    except KeyError:
        raise RuntimeError("api.protocols.sealing.configure(secret) was not called at start.") from None


def sign(text: str) -> str:
    """The signature of a thinking block: the same text always gets the same one."""
    return base64.b64encode(hmac.digest(_key("sign"), text.encode(), hashlib.sha256)).decode()


def seal(text: str, kind: str) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_key("seal")).encrypt(nonce, text.encode(), kind.encode())
    return base64.urlsafe_b64encode(nonce + sealed).decode()


def unseal(token: str, kind: str) -> str | None:
    """The text, or None when we did not make this token for this kind."""
    try:
        raw = base64.urlsafe_b64decode(token.encode())
        return AESGCM(_key("seal")).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], kind.encode()).decode()
    except (ValueError, InvalidTag):
        return None
