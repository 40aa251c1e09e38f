"""Where a request really comes from, and networks to compare it with.

X-Forwarded-For is a claim of whoever sent it. It counts only as far as it was added by proxies that the operator trusts
(`TRUSTED_PROXIES`): read from the right, the first address that is no trusted proxy is the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from django.conf import settings
from django.http import HttpRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
# Of ::ffff:0:0/96, before the IPv4 address.
IPV4_MAPPED_BITS = 96


def parse_address(text: str) -> Address | None:
    """The address, without port or brackets; IPv4 written as IPv6 is IPv4. None if it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_network(text: str) -> Network:
    """One address or a CIDR network; IPv4 written as IPv6 is IPv4. Raises ValueError that says what is wrong."""
    try:
        network = ip_network(text.strip())
    except ValueError:
        pass
    else:
        mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
        return network if mapped is None else IPv4Network((mapped, network.prefixlen - IPV4_MAPPED_BITS))
    try:
        meant = ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(
            f"{text.strip()!r} is no IP address or network such as 203.0.113.0/24 or 2001:db8::/32."
        ) from None
    raise ValueError(f"{text.strip()} is an address inside a network; write {meant} or the address alone.")


def is_inside(address: Address | None, networks: Iterable[Network]) -> bool:
    return address is not None and any(address in network for network in networks)


def client_address(peer: str | None, forwarded_for: str, trusted: Sequence[Network]) -> Address | None:
    """The client of a connection from `peer`. None if it is unknown: no peer, or a trusted proxy wrote nonsense."""
    address = parse_address(peer or "")
    hops = [hop for hop in forwarded_for.split(",") if hop.strip()]
    while hops and is_inside(address, trusted):
        address = parse_address(hops.pop())
    return address


def address_of(request: HttpRequest) -> Address | None:
    return client_address(
        request.META.get("REMOTE_ADDR"), request.META.get("HTTP_X_FORWARDED_FOR", ""), settings.TRUSTED_PROXIES
    )


def text_of(request: HttpRequest) -> str | None:
    """For libraries that want text, or None."""
    address = address_of(request)
    return None if address is None else str(address)
