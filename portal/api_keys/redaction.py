"""Keeps keys out of logs and error texts: what begins like one of ours, or stands where a credential does, is cut out.

A mistyped key is as secret as a right one, so the checksum is not asked; six characters after the prefix are enough.
"""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any

# The prefix alone, and the part of a key that may be shown (five characters behind the prefix), stay readable.
_KEY = re.compile(r"\b(sk-tf-(?:admin-|operator-)?+)[0-9A-Za-z]{6,}")
_BEARER = re.compile(r"(?i)\b(bearer\s+)(?!\[)[^\s'\",;)\]}]+")
_X_API_KEY = re.compile(r"(?i)(x-api-key['\"]?+\s*+[:=,]\s*+b?+['\"]?+)(?!\[)[^\s'\",;)\]}]+")
_WEBHOOK_SECRET = re.compile(r"\b(whsec_)[0-9A-Za-z+/=_-]{6,}")
HIDDEN = r"\1[redacted]"


def redact(text: str) -> str:
    """The text without keys, bearer tokens and webhook secrets. Cheap where there are none."""
    lower = text.lower()
    if "sk-tf-" in lower:
        text = _KEY.sub(HIDDEN, text)
    if "bearer" in lower:
        text = _BEARER.sub(HIDDEN, text)
    if "x-api-key" in lower:
        text = _X_API_KEY.sub(HIDDEN, text)
    if "whsec_" in lower:
        text = _WEBHOOK_SECRET.sub(HIDDEN, text)
    return text


def holds_key(text: str) -> bool:
    return redact(text) != text


def _clean(value: Any) -> Any:
    """A log argument, itself where it is harmless, else its text without keys."""
    if value is None or isinstance(value, int | float):
        return value
    try:
        text = str(value)
    except Exception:  # an argument that cannot be printed is the logger's to report
        return value
    redacted = redact(text)
    return value if redacted == text else redacted


def redact_record(record: logging.LogRecord) -> logging.LogRecord:
    """Cleans message, arguments and traceback of a record, whichever handler and format come after."""
    if isinstance(record.msg, str):
        record.msg = redact(record.msg)
    elif record.msg is not None:
        record.msg = _clean(record.msg)
    if isinstance(record.args, dict):
        record.args = {name: _clean(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(_clean(value) for value in record.args)
    if record.exc_info and record.exc_info[0] is not None:
        # Formatters print `exc_text` where it is set, and so never the raw exception.
        record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
        if holds_key(str(record.exc_info[1])):
            record.exc_info = None
    if record.stack_info:
        record.stack_info = redact(record.stack_info)
    return record


def install() -> None:
    """Every record of this process is made clean, whichever logger makes it. A repeat does nothing."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts_keys", False):
        return

    def make_clean(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return redact_record(make(*args, **kwargs))

    make_clean.redacts_keys = True  # type: ignore[attr-defined]  # a mark on our own function
    logging.setLogRecordFactory(make_clean)
