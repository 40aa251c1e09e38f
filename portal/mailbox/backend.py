"""Django e-mail backend that prints each mail and keeps it as a file under MAILBOX_DIR."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.console import EmailBackend as ConsoleBackend
from django.utils import timezone

# The oldest go when there are more.
KEPT_MAILS = 200


class MailboxBackend(ConsoleBackend):
    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        for message in email_messages:
            _keep(message)
        return super().send_messages(email_messages) or 0

    def write_message(self, message: EmailMessage) -> None:
        """Only what a person at the console needs: the HTML form would bury the link."""
        recipients = ", ".join(message.recipients())
        self.stream.write(f"Mail to {recipients}: {message.subject}\n\n{message.body}\n{'-' * 60}\n")


def _keep(message: EmailMessage) -> None:
    folder = Path(settings.MAILBOX_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    # The name sorts by time and cannot be guessed.
    path = folder / f"{timezone.now():%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex}.eml"
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(message.message().as_bytes())
    os.replace(unfinished, path)
    for old in sorted(folder.glob("*.eml"))[:-KEPT_MAILS]:
        old.unlink(missing_ok=True)
