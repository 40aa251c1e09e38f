"""People, organizations and models. Three people: owner Ada, developer Ben, outsider Cyd."""

from __future__ import annotations

from dataclasses import dataclass

from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.utils import timezone

from portal.catalog.models import Deployment, Model
from portal.catalog.services import change_price
from portal.organizations.models import Member, Organization, Project
from portal.organizations.roles import Role
from portal.organizations.services import create_organization
from portal.users.models import User
from tests.factories.password import PASSWORD

MODEL = "smollm2-135m-instruct"


def make_user(name: str, *, is_operator: bool = False) -> User:
    """With a proven address, NAME@example.com."""
    user = User.objects.create_user(
        f"{name.lower()}@example.com", PASSWORD, name=name, is_staff=is_operator, is_superuser=is_operator
    )
    EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    return user


def set_up_second_factor(user: User) -> None:
    TOTP.activate(user, generate_totp_secret())


@dataclass(frozen=True)
class Cast:
    """Ada owns the organization, Ben is a developer, Dee an admin; Cyd has another one; Oda runs the service."""

    ada: User
    ben: User
    dee: User
    cyd: User
    oda: User
    organization: Organization
    project: Project


def make_cast() -> Cast:
    ada, ben, dee, cyd = (make_user(name) for name in ("Ada", "Ben", "Dee", "Cyd"))
    organization = create_organization(owner=ada, name="Analytical Engines")
    Member.objects.create(user=ben, organization=organization, role=Role.DEVELOPER)
    Member.objects.create(user=dee, organization=organization, role=Role.ADMIN)
    create_organization(owner=cyd, name="Cyd's organization")
    oda = make_user("Oda", is_operator=True)
    return Cast(ada, ben, dee, cyd, oda, organization, Project.objects.get(organization=organization))


def make_model(name: str = MODEL) -> Model:
    """Published, with a deployment and the default price in force."""
    model, _ = Model.objects.get_or_create(
        name=name,
        defaults={
            "display_name": "SmolLM2 135M Instruct",
            "context_tokens": 8192,
            "default_max_output_tokens": 1024,
            "max_output_tokens": 4096,
            "is_published": True,
        },
    )
    Deployment.objects.get_or_create(model=model, address="127.0.0.1:50051")
    change_price(
        model=model,
        input_nano=400_000_000,
        cached_input_nano=100_000_000,
        output_nano=2_030_000_000,
        effective_from=timezone.now(),
        actor=None,
    )
    return model
