"""What callers may name (Model) and where it runs (Deployment)."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal.plain_text import refuse_invisible


class Model(models.Model):
    """`name` is the public id in the API; it is never reused for another model, since usage and prices refer to it."""

    name = models.CharField(
        max_length=100,
        unique=True,
        validators=[
            RegexValidator(
                r"^[a-z0-9][a-z0-9._:/-]*$",
                _("Use lower-case letters, digits and . _ : / - only, beginning with a letter or digit."),
            )
        ],
    )
    display_name = models.CharField(max_length=100, validators=[refuse_invisible])
    description = models.TextField(blank=True)
    context_tokens = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    default_max_output_tokens = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    max_output_tokens = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    is_published = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [
            models.CheckConstraint(
                condition=Q(default_max_output_tokens__lte=F("max_output_tokens"))
                & Q(max_output_tokens__lte=F("context_tokens")),
                name="model_output_fits_context",
                violation_error_message=_("Default output ≤ maximum output ≤ context must hold."),
            )
        ]

    def __str__(self) -> str:
        return self.name


class DeploymentKind(models.TextChoices):
    ENGINE = "engine", _("Engine (gRPC)")
    OPENAI_COMPATIBLE = "openai_compatible", _("OpenAI-compatible upstream")


class Deployment(models.Model):
    """A running instance of a model. `weight` shares traffic among a model's enabled deployments.

    An upstream's secret is never stored here: `credential_variable` names the environment variable that holds it.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="deployments")
    kind = models.CharField(max_length=20, choices=DeploymentKind.choices, default=DeploymentKind.ENGINE)
    address = models.CharField(max_length=200, help_text=_("host:port of an engine, or the base URL of an upstream."))
    upstream_model = models.CharField(
        max_length=200, blank=True, help_text=_("The model's name there; empty if the same.")
    )
    credential_variable = models.CharField(
        max_length=100,
        blank=True,
        # A free choice of variable would let one operator send the service's other secrets to an address of theirs.
        validators=[
            RegexValidator(r"^UPSTREAM_KEY_[A-Z0-9_]+$", _("The variable's name must begin with UPSTREAM_KEY_."))
        ],
        help_text=_("Environment variable with the upstream's key; its name begins with UPSTREAM_KEY_."),
    )
    is_enabled = models.BooleanField(default=True)
    weight = models.PositiveSmallIntegerField(default=100, validators=[MinValueValidator(1)])
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "portal"
        constraints = [models.UniqueConstraint(fields=["model", "address"], name="deployment_once_per_address")]

    def __str__(self) -> str:
        return f"{self.model} at {self.address}"

    def clean(self) -> None:
        is_url = self.address.startswith(("http://", "https://"))
        if self.kind == DeploymentKind.OPENAI_COMPATIBLE and not is_url:
            raise ValidationError({"address": _("An upstream's address is a base URL such as https://host/v1.")})
        if self.kind == DeploymentKind.ENGINE and (is_url or ":" not in self.address):
            raise ValidationError({"address": _("An engine's address is host:port, such as 127.0.0.1:50051.")})
