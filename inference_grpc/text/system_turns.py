"""System messages for templates that want one, at the beginning: agents also send them between the turns."""

from __future__ import annotations

from dataclasses import replace

from inference_grpc.core.request import Message

# What such a template (Qwen's) says before it gives up.
REFUSAL = "System message must be at the beginning"


def with_system_first(messages: list[Message]) -> list[Message]:
    """The leading system messages as one; a later one becomes a user turn that says what it is."""
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    first = [message.content for message in messages[:leading] if message.content]
    turns = [_as_user(message) if message.role == "system" else message for message in messages[leading:]]
    return [Message("system", "\n\n".join(first)), *turns] if first else turns


def _as_user(message: Message) -> Message:
    return replace(message, role="user", content=f"<system>\n{message.content or ''}\n</system>")
