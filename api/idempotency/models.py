from __future__ import annotations

from django.db import models


class IdempotentCall(models.Model):
    project = models.ForeignKey("portal.Project", on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    # SHA-256 over path and body.
    digest = models.CharField(max_length=64)
    # Who holds the key; only that call may finish or release it.
    request_id = models.UUIDField()
    # Null while the call runs.
    status = models.PositiveSmallIntegerField(null=True)
    content_type = models.CharField(max_length=100, blank=True)
    # Null also when the answer was too long to keep.
    answer = models.BinaryField(null=True)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "key"], name="api_idempotency_key_once")]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.key}"
