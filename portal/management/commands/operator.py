"""Creates an operator, or gives one a new password."""

from __future__ import annotations

import secrets
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.core.validators import validate_email

from portal.users.services import make_operator


class Command(BaseCommand):
    help = "Makes the user of this address an operator with a new password, which is printed once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--email", required=True, help="The address to sign in with.")

    def handle(self, *args: Any, **options: Any) -> None:
        email = options["email"].strip().lower()
        try:
            validate_email(email)
        except ValidationError:
            raise CommandError(f"{email!r} is not an e-mail address.") from None
        password = secrets.token_urlsafe(15)
        make_operator(email=email, password=password)
        self.stdout.write(f"Operator: {email}  password: {password}  (shown once)")
