"""What webhooks may be sent to: public addresses alone, however another one is written."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from portal.alerts import outbound
from portal.alerts.outbound import TargetRefused, check_url, is_public, resolve


class TestTargets:
    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
            "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1",
            "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1", "192.0.2.1", "198.18.0.1",
        ],
    )  # fmt: skip
    def test_no_private_address_is_public(self, address: str) -> None:
        assert not is_public(ip_address(address))

    @pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
    def test_others_are(self, address: str) -> None:
        assert is_public(ip_address(address))

    @pytest.mark.parametrize(
        "url",
        [
            "http://example.com/", "ftp://example.com/", "https://", "https://user:secret@example.com/",
            "https://example.com:0/", "https://example.com:99999/", "//example.com", "javascript:alert(1)",
        ],
    )  # fmt: skip
    def test_odd_addresses_are_refused(self, url: str) -> None:
        with pytest.raises(TargetRefused):
            check_url(url, allow_private=False)

    @pytest.mark.parametrize(
        "host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0"]
    )
    def test_this_machine_is_refused_however_it_is_written(self, host: str) -> None:
        with pytest.raises(TargetRefused):
            resolve(check_url(f"https://{host}/", allow_private=False), allow_private=False)

    def test_a_name_with_one_private_address_among_public_ones_is_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = [(2, 1, 6, "", (address, 443)) for address in ("93.184.216.34", "10.0.0.1")]
        monkeypatch.setattr(outbound.socket, "getaddrinfo", lambda *_, **__: found)
        with pytest.raises(TargetRefused, match="private network"):
            resolve(check_url("https://rebind.example.com/", allow_private=False), allow_private=False)

    def test_the_connection_goes_to_the_address_that_was_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A name that resolves differently a moment later changes nothing: it is asked once."""
        asked: list[str] = []
        dialled: list[Any] = []

        def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
            asked.append(host)
            return [(2, 1, 6, "", ("93.184.216.34" if len(asked) == 1 else "127.0.0.1", 443))]

        def connect(self: Any, where: Any) -> None:
            dialled.append(where)
            raise ConnectionRefusedError(111, "Connection refused")

        with monkeypatch.context() as patch:
            patch.setattr(outbound.socket, "getaddrinfo", getaddrinfo)
            patch.setattr(outbound.socket.socket, "connect", connect)
            outcome = outbound.post("https://rebind.example.com/", b"{}", {}, allow_private=False)
        assert outcome.error == "No connection: Connection refused"
        assert asked == ["rebind.example.com"]
        assert dialled == [("93.184.216.34", 443)]
