"""Shares a conversation inside its organization, and ends that."""

from __future__ import annotations

from typing import Any

import msgspec
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from portal.audit.services import record_event
from portal.organizations.models import Organization
from portal.plain_text import without_invisible
from portal.playground.models import SharedConversation
from portal.users.models import User

# What one share may take; a longer conversation belongs in a file.
LARGEST_BYTES = 256 * 1024
TITLE_LENGTH = 80


class InvalidConversation(ValueError):
    """The browser sent something that is no conversation; says what."""


class Turn(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message in the form of Chat Completions."""

    role: str
    content: str = ""
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str = ""


class Conversation(msgspec.Struct, forbid_unknown_fields=True):
    """The settings as they stand in the page's fields, and the turns so far."""

    model: str
    system: str = ""
    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    stop: str = ""
    tools: str = ""
    answer: str = "text"
    schema: str = ""
    turns: list[Turn] = []


def share(*, organization: Organization, body: bytes, actor: User) -> SharedConversation:
    """`body` is the JSON of a Conversation. Raises InvalidConversation."""
    if len(body) > LARGEST_BYTES:
        raise InvalidConversation(
            _("The conversation is longer than %(limit)s KiB; share a shorter one.") % {"limit": LARGEST_BYTES // 1024}
        )
    try:
        conversation = msgspec.json.decode(body, type=Conversation)
    except msgspec.DecodeError as error:
        raise InvalidConversation(f"This is no conversation: {error}.") from None
    asked = next((turn.content for turn in conversation.turns if turn.role == "user"), "")
    title = without_invisible(asked or conversation.system)[:TITLE_LENGTH] or conversation.model
    with transaction.atomic():
        shared = SharedConversation.objects.create(
            organization=organization, shared_by=actor, title=title, content=msgspec.to_builtins(conversation)
        )
        record_event(organization_id=organization.id, actor=actor, action="conversation.shared", subject=shared)
    return shared


@transaction.atomic
def unshare(*, shared: SharedConversation, actor: User) -> None:
    record_event(organization_id=shared.organization_id, actor=actor, action="conversation.unshared", subject=shared)
    shared.delete()
