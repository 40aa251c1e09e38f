"""Signatures of webhooks, as the Standard Webhooks specification has them, so that receivers need no code of ours.

Signed is `{id}.{timestamp}.{body}` with HMAC-SHA256; the header `webhook-signature` holds one `v1,<base64>` for each
secret in force. A receiver compares one of them in constant time and refuses a timestamp more than five minutes off.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
SECRET_BYTES = 32


def generate() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    mac = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(mac.digest()).decode()}"


def headers(secrets_in_force: Sequence[str], *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    signed = [sign(secret, message_id=message_id, timestamp=timestamp, body=body) for secret in secrets_in_force]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signed),
    }
