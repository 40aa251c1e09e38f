"""What each deployment last said about itself. Written by the task that asks them, read by the operator's pages.

Kept in the cache for a short while only: a state that nobody renews is unknown, not fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime

from django.core.cache import cache

from portal.catalog.selectors import DeploymentInfo

KEPT_S = 180
Fact = str | int | list[int]


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """`facts` are the deployment's own figures by name, such as `engine`, `pages_total` and `waiting`; what they are
    called for a reader: portal/operator/engine_facts.py."""

    is_healthy: bool
    checked_at: datetime
    # The title is told in the reader's language (portal/operations/titles.py); `error` is what the engine said itself.
    error_code: str = ""
    error: str = ""
    facts: dict[str, Fact] = field(default_factory=dict)


def _key(deployment_id: int) -> str:
    # The number changes with the shape of the facts: while versions change, both are at work.
    return f"deployment-status:3:{deployment_id}"


def record(deployment_id: int, status: DeploymentStatus) -> None:
    """Replaces what was known. Safe to repeat."""
    cache.set(_key(deployment_id), asdict(status), KEPT_S)


def read(deployment_ids: Iterable[int]) -> dict[int, DeploymentStatus]:
    """Only those that reported lately."""
    keys = {_key(number): number for number in deployment_ids}
    return {keys[key]: DeploymentStatus(**value) for key, value in cache.get_many(keys).items()}


def silent(deployments: Iterable[DeploymentInfo], statuses: Mapping[int, DeploymentStatus]) -> list[DeploymentInfo]:
    """The enabled ones that lately did not answer."""
    return [row for row in deployments if row.is_enabled and row.id in statuses and not statuses[row.id].is_healthy]
