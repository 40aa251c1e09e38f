"""The functions that run inside Valkey: one library of Lua files, under the hash of its source.

The names of the functions end in that hash too, so that processes of two versions share a server and call each its own.
Whoever finds a server without them loads them and calls again; a server keeps and replicates them like data.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import redis

# What the functions share comes first.
_SHARED = ("counters", "shapes")
_NAMES = ("reserve", "settle", "transfer", "adjust", "load_window", "begin_refresh", "commit_refresh")


class Library:
    """`source` is what FUNCTION LOAD takes."""

    def __init__(self, folder: Path) -> None:
        code = "".join((folder / f"{name}.lua").read_text() for name in (*_SHARED, *_NAMES))
        self._version = sha256(code.encode()).hexdigest()[:12]
        registered = "".join(f"redis.register_function('{self.function(name)}', {name})\n" for name in _NAMES)
        self.source = f"#!lua name=admission_{self._version}\n{code}{registered}"

    def function(self, name: str) -> str:
        """Its name in Valkey."""
        return f"{name}_{self._version}"


LIBRARY = Library(Path(__file__).parent / "lua")


def is_unknown_function(error: Exception) -> bool:
    """Whether this is what a server answers that the library is not loaded into."""
    return "Function not found" in str(error)


def call(client: redis.Redis, name: str, keys: Sequence[str], *arguments: Any) -> Any:  # as the function returns
    """By the general client; the gateways' hot path calls through api/valkey.py."""
    command = (LIBRARY.function(name), len(keys), *keys, *arguments)
    try:
        return client.fcall(*command)
    except redis.ResponseError as error:
        if not is_unknown_function(error):
            raise
    client.function_load(LIBRARY.source, replace=True)
    return client.fcall(*command)
