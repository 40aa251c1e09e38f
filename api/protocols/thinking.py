"""How a caller's wish about reasoning reaches the chat template, the same from every dialect."""

from __future__ import annotations

from typing import Any

from api.protocols.decoding import check_one_of

# The templates know three levels and refuse other words; every word that a client may send is one of them.
LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh", "max": "xhigh"}
EFFORTS = ("none", *LEVELS)


def template_options(effort: str | None, param: str) -> dict[str, Any]:
    """Template options of a reasoning effort; {} leaves the model's default. Raises BadRequest for an unknown word."""
    if effort is None:
        return {}
    check_one_of(effort, EFFORTS, param)
    if effort == "none":
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": LEVELS[effort]}
