from __future__ import annotations

from pathlib import Path

import grpc._cython.cygrpc as core

from inference_grpc.server.process import SERVER_OPTIONS


def test_grpc_knows_every_option() -> None:
    """An option whose name grpc does not know is silently ignored: then idle sessions were cut as "too many pings"."""
    library = Path(core.__file__).read_bytes()
    for name, _ in SERVER_OPTIONS:
        assert name.encode() in library, name
