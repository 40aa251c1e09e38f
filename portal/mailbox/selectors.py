"""Reads the kept mails."""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from pathlib import Path

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Mail:
    name: str
    recipient: str
    subject: str
    sent_at: datetime | None
    text: str


def _read(path: Path) -> Mail:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    assert isinstance(message, EmailMessage)  # what the default policy makes
    part = message.get_body(preferencelist=("plain",))
    return Mail(
        name=path.stem,
        recipient=str(message["To"]),
        subject=str(message["Subject"]),
        sent_at=_sent_at(message),
        text=part.get_content() if part else "",
    )


def _sent_at(message: EmailMessage) -> datetime | None:
    if not message["Date"]:
        return None
    moment = parsedate_to_datetime(str(message["Date"]))
    # Django writes the zone as -0000, which reads as "UTC, place unknown": a naive time.
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def latest_mails(limit: int = 30) -> list[Mail]:
    """Newest first; a mail that is removed meanwhile is left out."""
    mails = []
    for path in sorted(Path(settings.MAILBOX_DIR).glob("*.eml"), reverse=True)[:limit]:
        try:
            mails.append(_read(path))
        except FileNotFoundError:
            continue
    return mails


def find_mail(name: str) -> Mail | None:
    if not re.fullmatch(r"[0-9T]+-[0-9a-f]{32}", name):
        return None
    path = Path(settings.MAILBOX_DIR) / f"{name}.eml"
    return _read(path) if path.is_file() else None
