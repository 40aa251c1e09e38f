"""The page that shows the OpenAPI document to people: laid out by the server, so that no script is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator

METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Operation:
    anchor: str
    method: str
    path: str
    summary: str
    parameters: list[Field]
    body: list[Field]
    answer: list[Field]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    operations: list[Operation] = field(default_factory=list)


def docs(request: HttpRequest) -> HttpResponse:
    """Open to everyone, like the document itself: it holds nothing of any organization."""
    document: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return render(request, "api/docs.html", {"sections": sections_of(document)})


def sections_of(document: dict[str, Any]) -> list[Section]:
    """The management paths by tag, in the document's order; the inference paths follow their own manuals."""
    schemas = document["components"]["schemas"]
    sections: dict[str, Section] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            operation = item.get(method)
            if operation is None or operation["tags"][0] == "inference":
                continue
            tag = operation["tags"][0]
            sections.setdefault(tag, Section(tag)).operations.append(_operation(path, method, operation, schemas))
    return list(sections.values())


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Operation:
    parameters = [
        Field(each["name"], _kind(each["schema"], schemas), each.get("required", False), each.get("description", ""))
        for each in operation.get("parameters", [])
    ]
    success: dict[str, Any] = next(
        (answer for code, answer in operation["responses"].items() if code.startswith("2")), {}
    )
    return Operation(
        anchor=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation.get("description") or operation.get("summary", ""),
        parameters=parameters,
        body=_fields(operation.get("requestBody", {}), schemas, writing=True),
        answer=_fields(success, schemas, writing=False),
    )


def _fields(holder: dict[str, Any], schemas: dict[str, Any], *, writing: bool) -> list[Field]:
    schema = holder.get("content", {}).get("application/json", {}).get("schema", {})
    schema = _resolved(schema, schemas)
    if schema.get("type") == "array":
        schema = _resolved(schema["items"], schemas)
    properties: dict[str, Any] = schema.get("properties", {})
    if set(properties) == {"data", "next"}:
        # A page: its items are what is of interest.
        properties = _resolved(_resolved(properties["data"], schemas).get("items", {}), schemas).get("properties", {})
    required = set(schema.get("required", []))
    return [
        Field(name, _kind(each, schemas), writing and name in required, _resolved(each, schemas).get("description", ""))
        for name, each in properties.items()
        if not (writing and each.get("readOnly"))
    ]


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None and len(schema.get("allOf", ())) == 1:
        reference = schema["allOf"][0].get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = schemas[reference.rpartition("/")[2]]
    return found | {name: value for name, value in schema.items() if name == "description"}


def _kind(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """What a value looks like, in words."""
    schema = _resolved(schema, schemas)
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(_kind(each, schemas) for each in schema["oneOf"]))
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"] if value not in ("", None)) or "empty"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'], schemas)}"
    kind = str(schema.get("format") or schema.get("type", "object"))
    return {"date-time": "time", "uuid": "UUID", "uri": "URL"}.get(kind, kind)
