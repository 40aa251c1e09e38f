"""The roles a member can have. What each may do is in `portal/permissions.py`."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Role(models.TextChoices):
    OWNER = "owner", _("Owner")
    ADMIN = "admin", _("Admin")
    BILLING = "billing", _("Billing")
    DEVELOPER = "developer", _("Developer")
    VIEWER = "viewer", _("Viewer")


DESCRIPTIONS = {
    Role.OWNER: "Everything, ownership and deletion included",
    Role.ADMIN: "Everything but ownership and deletion",
    Role.BILLING: "Billing, invoices and alerts",
    Role.DEVELOPER: "API keys and the playground",
    Role.VIEWER: "Sees everything, changes nothing",
}
