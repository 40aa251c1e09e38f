"""What a limit or an alert applies to: as the API says it, and as the pages' forms take it."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError

from portal.api_keys.selectors import client_keys
from portal.organizations.selectors import projects_of


def scope_value(organization: Any, scope: str) -> str:
    """`project:SLUG` as the form's `project:ID`; the rest as it is."""
    kind, _, name = scope.partition(":")
    if kind != "project":
        return scope
    found = next((project for project in projects_of(organization) if project.slug == name), None)
    if found is None:
        raise ValidationError({"scope": [f"There is no project {name!r} in this organization."]})
    return f"project:{found.id}"


def offered(organization: Any, scope: str) -> dict[str, Any]:
    """The projects and keys among which a form chooses: all projects, and the one key that is named."""
    kind, _, number = scope.partition(":")
    is_key = kind == "api_key" and number.isdecimal() and len(number) < 19
    keys = client_keys(organization).filter(id=int(number)) if is_key else []
    return {"projects": projects_of(organization), "api_keys": list(keys)}
