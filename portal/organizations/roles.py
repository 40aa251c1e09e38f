"""The roles a member can have. What each may do is in `portal/permissions.py`."""

from __future__ import annotations

from django.db import models


class Role(models.TextChoices):
    OWNER = "owner", "Owner"
    ADMIN = "admin", "Admin"
    BILLING = "billing", "Billing"
    DEVELOPER = "developer", "Developer"
    VIEWER = "viewer", "Viewer"


DESCRIPTIONS = {
    Role.OWNER: "Everything, ownership and deletion included",
    Role.ADMIN: "Everything but ownership and deletion",
    Role.BILLING: "Billing, invoices and alerts",
    Role.DEVELOPER: "API keys and the playground",
    Role.VIEWER: "Sees everything, changes nothing",
}
