"""A short name for all that decides which tokens a prompt and a seed give."""

from __future__ import annotations

import hashlib
import json

from inference_grpc.core.backend import BackendInfo


def fingerprint_of(version: str, info: BackendInfo) -> str:
    """Equal for engines of one build with the same weights, precision, draft head and kind of device; so a restart does
    not change it, and every replica has it."""
    parts = [version, info.runtime, info.model, info.weights_sha256, info.precision, info.draft_head, info.device]
    return f"fp_{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"
