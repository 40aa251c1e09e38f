"""Tables of kept responses. JSON is kept as text, byte for byte: PostgreSQL's jsonb cannot hold a NUL character."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class StoredResponse(models.Model):
    project = models.ForeignKey("portal.Project", on_delete=models.CASCADE, related_name="+")
    response_id = models.CharField(max_length=80, unique=True)
    # The name stays when the response it means is deleted: then the chain is known to be broken.
    previous_response_id = models.CharField(max_length=80, blank=True)
    previous = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    body = models.TextField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(expires_at__gt=F("created_at")), name="api_response_expires_later")
        ]

    def __str__(self) -> str:
        return self.response_id


class StoredItem(models.Model):
    response = models.ForeignKey(StoredResponse, on_delete=models.CASCADE, related_name="items")
    is_output = models.BooleanField()
    position = models.PositiveIntegerField()
    # Chosen by the client for items it replays, so not unique.
    item_id = models.CharField(max_length=200, db_index=True)
    body = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["response", "is_output", "position"], name="api_item_position_once")
        ]

    def __str__(self) -> str:
        return self.item_id
