"""Requests as no client library makes them, byte by byte: each is answered clearly, none leaves a hold behind."""

from __future__ import annotations

import codecs
import contextlib
import socket
from urllib.parse import urlsplit

import orjson
import pytest

from tests.api.live.service import MODEL, PATIENCE_S, Account

CHAT = "/v1/chat/completions"


def exchange(account: Account, request: bytes) -> tuple[int, bytes]:
    """Status and body of the one answer, and the server closes the connection."""
    address = urlsplit(account.web.url)
    received = b""
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        # A server that refuses in the middle of a request may reset the connection, under what is still sent too.
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                received += part
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def post(account: Account, *lines: str, body: bytes, target: str = CHAT, version: str = "1.1") -> tuple[int, bytes]:
    head = [f"POST {target} HTTP/{version}", f"Authorization: Bearer {account.secret}", "Connection: close", *lines]
    return exchange(account, "\r\n".join([*head, "", ""]).encode("latin-1") + body)


def chat(prompt: str = "SAY: hi") -> bytes:
    return orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": prompt}]})


def sized(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def test_old_and_proxied_forms_of_a_request_are_served(account: Account) -> None:
    body = chat()
    assert post(account, sized(body), body=body, version="1.0")[0] == 200
    assert post(account, sized(body), "Host: x", body=body, target=f"http://x{CHAT}")[0] == 200
    assert post(account, "Transfer-Encoding: chunked", "Host: x", body=chunked(body))[0] == 200
    assert post(account, sized(body), "Host: x", f"X-Codex-Turn-Metadata: {'a' * 20_000}", body=body)[0] == 200
    account.assert_books_agree()
    assert len(account.records()) == 4


BROKEN = {
    "a header without a colon": (("Host: x", "no colon", sized(chat())), chat()),
    "two lengths": (("Host: x", "Content-Length: 5", sized(chat())), chat()),
    "a negative length": (("Host: x", "Content-Length: -1"), chat()),
    "a length beyond all numbers": (("Host: x", f"Content-Length: {'9' * 30}"), chat()),
    "a chunk without a size": (("Host: x", "Transfer-Encoding: chunked"), b"zz\r\nabc\r\n0\r\n\r\n"),
    "a chunk of no possible size": (("Host: x", "Transfer-Encoding: chunked"), b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n"),
    "ten thousand headers": (("Host: x", *(f"X-{n}: a" for n in range(10_000)), sized(chat())), chat()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_request_is_refused(account: Account, name: str) -> None:
    lines, body = BROKEN[name]
    assert post(account, *lines, body=body)[0] in (400, 431)
    assert account.records() == []


@pytest.mark.parametrize("target", [CHAT, "/v1/messages/count_tokens", "/api/organizations", "/accounts/login/"])
def test_a_body_that_breaks_off_is_refused_in_words(account: Account, target: str) -> None:
    status, body = post(account, "Host: x", "Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n", target=target)
    assert status == 400
    assert "broke off" in orjson.loads(body)["error"]["message"]


def test_a_caller_that_leaves_in_the_middle_of_its_body_leaves_nothing(account: Account) -> None:
    address = urlsplit(account.web.url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        lines = [f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {account.secret}", "Content-Length: 100"]
        connection.sendall("\r\n".join([*lines, "", "{"]).encode())
    assert post(account, "Host: x", sized(chat()), body=chat())[0] == 200
    account.assert_books_agree()
    assert len(account.records()) == 1


def test_pipelined_calls_are_answered_one_after_the_other(account: Account) -> None:
    one = "\r\n".join(
        [f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {account.secret}", sized(chat()), "", ""]
    ).encode()
    last = one.replace(b"Host: x", b"Host: x\r\nConnection: close")
    status, rest = exchange(account, one + chat() + last + chat())
    assert status == 200
    assert rest.count(b"HTTP/1.1 200 OK") == 1
    account.assert_books_agree()
    assert len(account.records()) == 2


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "is empty"),
        (chat().decode().encode("utf-16"), "UTF-16"),
        (chat().decode().encode("utf-16-le"), "UTF-16"),
        (chat().replace(b"hi", b"h\xe9"), "UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "an array"),
        (chat()[:-1] + b',"x":' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nested too deeply"),
        (chat()[:-1] + b',"temperature":NaN}', "not valid JSON"),
        (chat()[:-1] + b',"seed":' + b"9" * 5000 + b"}", "seed"),
    ],
    ids=["empty", "utf-16", "utf-16-without-mark", "latin-1", "array", "deep", "nan", "long-number"],
)
def test_bodies_that_are_not_ours_to_read_say_why(account: Account, body: bytes, says: str) -> None:
    status, answer = post(account, "Host: x", sized(body), body=body)
    assert status == 400
    assert says in orjson.loads(answer)["error"]["message"]
    assert account.records() == []


@pytest.mark.parametrize("target", [CHAT, "/v1/messages", "/v1/responses"])
def test_half_an_emoji_and_a_byte_order_mark_do_not_end_a_session(account: Account, target: str) -> None:
    """JavaScript cuts texts between surrogates and escapes the half; PowerShell begins files with a mark."""
    asked = {"model": MODEL, "input": "SAY: cut X end", "messages": [{"role": "user", "content": "SAY: cut X end"}]}
    if target == "/v1/responses":
        del asked["messages"]
    if target == "/v1/messages":
        asked["max_tokens"] = 100
    body = codecs.BOM_UTF8 + orjson.dumps(asked).replace(b"X", rb"\ud83d")
    status, answer = post(account, "Host: x", sized(body), body=body, target=target)
    assert status == 200, answer
    assert "cut \ufffd end" in answer.decode()


def test_an_expectation_is_met_before_the_body_is_sent(account: Account) -> None:
    address = urlsplit(account.web.url)
    body = chat()
    head = [f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {account.secret}", "Expect: 100-continue"]
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S) as connection:
        connection.sendall("\r\n".join([*head, "Connection: close", sized(body), "", ""]).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert b"".join(iter(lambda: connection.recv(65536), b"")).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("method", ["HEAD", "TRACE", "PURGE"])
def test_methods_that_a_path_has_not_are_405(account: Account, method: str) -> None:
    head = [f"{method} {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {account.secret}", "Connection: close"]
    assert exchange(account, "\r\n".join([*head, "", ""]).encode())[0] == 405


@pytest.mark.parametrize("path", ["/models/a%00b", "/organizations/a%00b/usage", "/v1/models/a%00b"])
def test_a_name_with_nul_is_not_found(account: Account, path: str) -> None:
    host = urlsplit(account.web.url).netloc
    head = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {account.secret}", "Connection: close"]
    assert exchange(account, "\r\n".join([*head, "", ""]).encode())[0] == 404
