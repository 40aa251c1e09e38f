"""A conversation of the playground that its organization's members may open."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from portal.organizations.models import Organization


class SharedConversation(models.Model):
    """As it was when it was shared: later turns are not in it. `content` is what the page's script wrote (services)."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    shared_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    title = models.CharField(max_length=120)
    content = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        db_table = "portal_shared_conversation"
        indexes = [models.Index(fields=["organization", "-id"], name="portal_shared_newest")]

    def __str__(self) -> str:
        return self.title
