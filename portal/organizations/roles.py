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
    Role.OWNER: _("Everything, ownership and deletion included"),
    Role.ADMIN: _("Everything but ownership and deletion"),
    Role.BILLING: _("Billing, invoices and alerts"),
    Role.DEVELOPER: _("API keys and the playground"),
    Role.VIEWER: _("Sees everything, changes nothing"),
}
