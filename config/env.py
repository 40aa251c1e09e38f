"""Typed readers of environment variables. A missing or odd value stops the start with the variable's name."""

from __future__ import annotations

import os
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}


def env_str(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, default)
    if value is None:
        raise ImproperlyConfigured(f"{name} is not set; .env.example says what it means.")
    return value


def env_bool(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    if value is None:
        return default
    if value.lower() in TRUE:
        return True
    if value.lower() in FALSE:
        return False
    raise ImproperlyConfigured(f"{name}={value!r} is not a boolean; use 1 or 0.")


def env_int(name: str, default: int, *, minimum: int = 0) -> int:
    value = os.environ.get(name)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number.") from None
    if number < minimum:
        raise ImproperlyConfigured(f"{name}={number} is below {minimum}.")
    return number


def env_list(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in os.environ.get(name, default).split(",") if part.strip()]


def networks(name: str, parts: list[str]) -> list[IPv4Network | IPv6Network]:
    """The networks of a list variable."""
    try:
        return [ip_network(part) for part in parts]
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}; use addresses and networks such as 10.0.0.0/8.") from None


def env_secret(name: str, default: str | None = None) -> str:
    """The value of NAME, or the content of the file that NAME_FILE names."""
    path = os.environ.get(f"{name}_FILE")
    if path and name in os.environ:
        raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; set one.")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE={path!r} cannot be read: {error.strerror}.") from error
    return env_str(name, default)


def env_url(name: str, schemes: set[str], default: str | None = None) -> str:
    value = env_secret(name, default)
    if value and urlsplit(value).scheme not in schemes:
        raise ImproperlyConfigured(f"{name} must begin with one of {', '.join(sorted(schemes))}://.")
    return value
