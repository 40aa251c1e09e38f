"""Prints an API key of a demo organization, for scripts. A repeat revokes the key before and prints a new one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from portal.api_keys.models import ApiKey
from portal.api_keys.services import issue, revoke
from portal.organizations.models import Organization, Project
from portal.organizations.services import provide_first_organization
from portal.users.models import User

EMAIL = "demo@localhost.localdomain"
KEY_NAME = "make demo-key"


class Command(BaseCommand):
    help = "Prints a fresh API key of the demo organization, and nothing else, on standard output."

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            user = User.objects.filter(email=EMAIL).first() or User.objects.create_user(EMAIL, name="Demo")
            organization: Organization = provide_first_organization(user)
            project = Project.objects.get(organization=organization, is_default=True)
            for old in ApiKey.objects.filter(project=project, name=KEY_NAME, revoked_at=None):
                revoke(api_key=old, actor=None)
            issued = issue(project=project, name=KEY_NAME, actor=None)
        self.stdout.write(issued.secret)
