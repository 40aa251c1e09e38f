"""What models that read text only are told in place of media."""

from __future__ import annotations


def tool_returned(what: str) -> str:
    """Stands in a tool's result for an image and the like.

    Nobody chose to send it: an agent read a file or took a picture. A refusal would end its session, for the result is
    in every later call; so the model is told, and can say so or take another way. `what` is as in "an image".
    """
    return f"[The tool returned {what}, which you cannot see: you read text only.]"
