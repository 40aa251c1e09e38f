"""Makes a new installation usable: default model, its deployment and price, a first operator. Safe to repeat."""

from __future__ import annotations

import secrets
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone

from billing.pricing.selectors import current_price
from portal.catalog.models import Deployment, Model
from portal.catalog.services import change_price, save_deployment, save_model
from portal.users.models import User
from portal.users.services import make_operator

MODEL = "smollm2-135m-instruct"
OPERATOR_EMAIL = "operator@localhost.localdomain"

# Nano-units per million tokens: $0.40 in, $0.10 cached in, $2.03 out.
INPUT_NANO, CACHED_INPUT_NANO, OUTPUT_NANO = 400_000_000, 100_000_000, 2_030_000_000


class Command(BaseCommand):
    help = "Adds the default model, its deployment and price, and an operator, where they are missing."

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            model = self._model()
            self._deployment(model)
            self._price(model)
        self._operator()

    def _model(self) -> Model:
        existing = Model.objects.filter(name=MODEL).first()
        if existing:
            return existing
        model = Model(
            name=MODEL,
            display_name="SmolLM2 135M Instruct",
            description="A small instruction-tuned model that runs on a CPU: for trying the service out.",
            context_tokens=8192,
            default_max_output_tokens=1024,
            max_output_tokens=4096,
            is_published=True,
        )
        self.stdout.write(f"Added the model {MODEL}.")
        return save_model(model=model, actor=None)

    def _deployment(self, model: Model) -> None:
        """The one deployment that this command made follows ENGINE_ADDRESS; others are left alone."""
        deployments = list(Deployment.objects.filter(model=model))
        if any(deployment.address == settings.ENGINE_ADDRESS for deployment in deployments):
            return
        if len(deployments) > 1:
            return
        deployment = deployments[0] if deployments else Deployment(model=model)
        if deployment.kind != "engine":
            return
        deployment.address = settings.ENGINE_ADDRESS
        save_deployment(deployment=deployment, actor=None)
        self.stdout.write(f"{MODEL} runs at {settings.ENGINE_ADDRESS}.")

    def _price(self, model: Model) -> None:
        now = timezone.now()
        if current_price(model.name, now):
            return
        change_price(
            model=model,
            input_nano=INPUT_NANO,
            cached_input_nano=CACHED_INPUT_NANO,
            output_nano=OUTPUT_NANO,
            effective_from=now,
            actor=None,
        )
        self.stdout.write("Set the default price.")

    def _operator(self) -> None:
        """The password is printed once and stored nowhere; `operator --email` makes a new one."""
        if User.objects.filter(is_staff=True).exists():
            return
        password = secrets.token_urlsafe(15)
        make_operator(email=OPERATOR_EMAIL, password=password)
        self.stdout.write(f"Operator: {OPERATOR_EMAIL}  password: {password}  (shown once)")
