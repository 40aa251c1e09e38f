"""Reads of models and deployments, as plain values that the gateway may keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from portal.catalog.models import Deployment, Model


@dataclass(frozen=True, slots=True)
class ModelInfo:
    id: int
    name: str
    display_name: str
    description: str
    context_tokens: int
    default_max_output_tokens: int
    max_output_tokens: int
    is_published: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class DeploymentInfo:
    """`upstream_model` is the name to ask for there: the public one when none was set."""

    id: int
    model: str
    kind: str
    address: str
    upstream_model: str
    credential_variable: str
    is_enabled: bool
    weight: int


def _model_info(model: Model) -> ModelInfo:
    return ModelInfo(
        model.id,
        model.name,
        model.display_name,
        model.description,
        model.context_tokens,
        model.default_max_output_tokens,
        model.max_output_tokens,
        model.is_published,
        model.created_at,
    )


def published_models() -> list[ModelInfo]:
    return [_model_info(model) for model in Model.objects.filter(is_published=True).order_by("name")]


def all_models() -> list[ModelInfo]:
    return [_model_info(model) for model in Model.objects.order_by("name")]


def find_model(name: str) -> ModelInfo | None:
    """The published model of that public name, or None."""
    model = Model.objects.filter(name=name, is_published=True).first()
    return None if model is None else _model_info(model)


def unknown_models(names: Iterable[str]) -> list[str]:
    """Those that no model has, published or not."""
    wanted = set(names)
    return sorted(wanted.difference(Model.objects.filter(name__in=wanted).values_list("name", flat=True)))


def enabled_deployments() -> list[DeploymentInfo]:
    """Those that may get traffic: enabled, of published models."""
    return deployments(is_enabled=True, model__is_published=True)


def deployments(**filters: object) -> list[DeploymentInfo]:
    rows = Deployment.objects.filter(**filters).select_related("model").order_by("model__name", "id")
    return [
        DeploymentInfo(
            row.id,
            row.model.name,
            row.kind,
            row.address,
            row.upstream_model or row.model.name,
            row.credential_variable,
            row.is_enabled,
            row.weight,
        )
        for row in rows
    ]
