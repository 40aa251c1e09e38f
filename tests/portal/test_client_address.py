"""Who a client is behind proxies, and what a network is."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from portal.client_address import client_address, is_inside, parse_network

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", "", "203.0.113.9"),
        # Whoever comes directly can claim nothing.
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("10.0.0.5", "198.51.100.1", "198.51.100.1"),
        # What the client itself put in front does not count.
        ("10.0.0.5", "1.2.3.4, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.5", "1.2.3.4, 198.51.100.1, 10.0.0.7", "198.51.100.1"),
        ("fd00::5", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.5", "[2001:db8::1]:4711", "2001:db8::1"),
        ("10.0.0.5", "198.51.100.1:4711", "198.51.100.1"),
        ("::ffff:10.0.0.5", "::ffff:198.51.100.1", "198.51.100.1"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("10.0.0.5", "unknown", None),
        (None, "198.51.100.1", None),
    ],
)
def test_the_client_is_the_first_that_no_trusted_proxy_is(peer: str | None, forwarded: str, client: str | None) -> None:
    assert client_address(peer, forwarded, PROXIES) == (ip_address(client) if client else None)


def test_nobody_is_believed_where_no_proxy_is_trusted() -> None:
    assert str(client_address("10.0.0.5", "198.51.100.1", [])) == "10.0.0.5"


def test_an_address_is_compared_with_networks_of_both_families() -> None:
    networks = [parse_network("203.0.113.0/24"), parse_network("2001:db8::/32"), parse_network("192.0.2.7")]
    for inside in ("203.0.113.200", "2001:db8:1::1", "192.0.2.7"):
        assert is_inside(ip_address(inside), networks)
    for outside in ("203.0.114.1", "2001:db9::1", "192.0.2.8"):
        assert not is_inside(ip_address(outside), networks)
    assert not is_inside(None, networks)


@pytest.mark.parametrize(
    ("text", "network"),
    [("::ffff:192.0.2.7", "192.0.2.7/32"), ("::ffff:192.0.2.0/120", "192.0.2.0/24"), ("::ffff:0:0/96", "0.0.0.0/0")],
)
def test_ipv4_written_as_ipv6_is_ipv4(text: str, network: str) -> None:
    assert str(parse_network(text)) == network


@pytest.mark.parametrize("text", ["nonsense", "300.1.1.1", "10.0.0.0/33", ""])
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no IP address or network"):
        parse_network(text)


def test_host_bits_are_a_mistake_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"write 10\.0\.0\.0/8"):
        parse_network("10.0.0.5/8")
