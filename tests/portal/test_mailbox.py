"""The development mailbox: mails are kept, and only someone at this machine reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.mail import EmailMultiAlternatives, get_connection
from django.test import Client

BACKEND = "portal.mailbox.backend.MailboxBackend"


@pytest.fixture
def mailbox(settings: Any, tmp_path: Path) -> Any:
    settings.MAILBOX_DIR = tmp_path
    settings.HAS_MAIL_SERVER = False
    settings.PUBLIC_URL = "http://127.0.0.1:8000"
    return settings


def send(subject: str = "Hello") -> None:
    message = EmailMultiAlternatives(subject, "Open http://127.0.0.1:8000/x?a=1", to=["ada@example.com"])
    message.attach_alternative("<p>html</p>", "text/html")
    assert get_connection(BACKEND).send_messages([message]) == 1


def test_mail_is_kept_printed_and_shown_with_its_link(
    mailbox: Any, db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    send()
    printed = capsys.readouterr().out
    assert "Mail to ada@example.com: Hello" in printed
    assert "<p>" not in printed
    page = Client().get("/dev/mailbox")
    (mail,) = page.context["mails"]
    body = Client().get(f"/dev/mailbox/{mail.name}").content.decode()
    assert 'href="http://127.0.0.1:8000/x?a=1"' in body


def test_empty_mailbox_says_what_to_do(mailbox: Any, db: None) -> None:
    assert "No mail yet" in Client().get("/dev/mailbox").content.decode()


def test_oldest_mails_go(mailbox: Any, monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    monkeypatch.setattr("portal.mailbox.backend.KEPT_MAILS", 2)
    for number in range(4):
        send(f"mail {number}")
    assert [mail.subject for mail in Client().get("/dev/mailbox").context["mails"]] == ["mail 3", "mail 2"]


@pytest.mark.parametrize("name", ["x", "..%2fsecret", "20260101T000000000000-" + "0" * 32])
def test_unknown_mail_is_not_there(mailbox: Any, db: None, name: str) -> None:
    assert Client().get(f"/dev/mailbox/{name}").status_code == 404


def test_is_closed_when_a_mail_server_is_set(mailbox: Any, db: None) -> None:
    mailbox.HAS_MAIL_SERVER = True
    assert Client().get("/dev/mailbox").status_code == 404


def test_is_closed_on_a_public_address(mailbox: Any, db: None) -> None:
    mailbox.PUBLIC_URL = "https://tokens.example.com"
    assert Client().get("/dev/mailbox").status_code == 404


def test_is_closed_to_other_machines_and_through_a_proxy(mailbox: Any, db: None) -> None:
    assert Client(REMOTE_ADDR="192.0.2.7").get("/dev/mailbox").status_code == 404
    assert Client(HTTP_X_FORWARDED_FOR="127.0.0.1").get("/dev/mailbox").status_code == 404
