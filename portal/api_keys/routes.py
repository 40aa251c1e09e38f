"""The routes that an API key can be held to; the gateway reads them too."""

from __future__ import annotations

from django.db import models


class Route(models.TextChoices):
    """What an API key may be used for; each is a group of paths (`api/key_rules.py`)."""

    CHAT = "chat", "Chat Completions"
    RESPONSES = "responses", "Responses"
    MESSAGES = "messages", "Messages"
    COMPLETIONS = "completions", "Completions"
    EMBEDDINGS = "embeddings", "Embeddings"
