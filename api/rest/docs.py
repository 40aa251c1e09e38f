"""The pages that show the OpenAPI document to people: laid out by the server, so that no script is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator

from api.protocols.field_support import SCHEMAS, marked_paths
from api.rest.openapi import TAG
from portal.catalog.selectors import published_models

# Fields in fields are shown down to here.
DEPTH = 3
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
    """`ignored` and `refused` hold (path of a field, why)."""

    title: str
    operations: list[Operation] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


def management_docs(request: HttpRequest) -> HttpResponse:
    """Open to everyone, like the document itself: it holds nothing of any organization."""
    return render(request, "api/docs.html", {"sections": sections_of(_document(), is_inference=False)})


def inference_docs(request: HttpRequest) -> HttpResponse:
    """The same, of the paths that call models."""
    models = published_models()
    context = {
        "sections": sections_of(_document(), is_inference=True),
        "example_model": models[0].name if models else "model",
    }
    return render(request, "api/inference_docs.html", context)


def _document() -> dict[str, Any]:
    document: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return document


def sections_of(document: dict[str, Any], *, is_inference: bool) -> list[Section]:
    """The paths of one half by their last tag, in the document's order."""
    schemas = document["components"]["schemas"]
    sections: dict[str, Section] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            operation = item.get(method)
            if operation is None or (operation["tags"][0] == TAG) != is_inference:
                continue
            title = operation["tags"][-1]
            if title not in sections:
                schema = SCHEMAS.get(title)
                marks = [marked_paths(schema, support) if schema else [] for support in ("ignored", "refused")]
                sections[title] = Section(title, [], *marks)
            sections[title].operations.append(_operation(path, method, operation, schemas))
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
    schema = _object_of(schema, schemas)[0] or {}
    properties: dict[str, Any] = schema.get("properties", {})
    if set(properties) == {"data", "next"}:
        # A page: its items are what is of interest.
        schema = _object_of(properties["data"], schemas)[0] or {}
    return list(_rows(schema, schemas, writing=writing, prefix="", seen=()))


def _rows(
    schema: dict[str, Any], schemas: dict[str, Any], *, writing: bool, prefix: str, seen: tuple[int, ...]
) -> Iterator[Field]:
    """The fields of an object, and behind each those of the objects in it; `[]` stands for a list's elements."""
    required = set(schema.get("required", []))
    for name, each in schema.get("properties", {}).items():
        if writing and each.get("readOnly"):
            continue
        text = _resolved(each, schemas).get("description", "")
        yield Field(prefix + name, _kind(each, schemas), writing and name in required, text)
        inner, is_list = _object_of(each, schemas)
        if inner is not None and id(inner) not in seen and len(seen) < DEPTH - 1:
            below = f"{prefix}{name}{'[]' if is_list else ''}."
            yield from _rows(inner, schemas, writing=writing, prefix=below, seen=(*seen, id(inner)))


def _object_of(schema: dict[str, Any], schemas: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The one kind of object that a value may be, or hold in a list; and whether it is a list."""
    choices = schema.get("anyOf") or schema.get("oneOf") or [schema]
    for choice in choices:
        found = _resolved(choice, schemas)
        if found.get("type") == "array":
            return _object_of(found.get("items", {}), schemas)[0], True
        if "properties" in found:
            return (schemas[choice["$ref"].rpartition("/")[2]] if "$ref" in choice else found), False
    return None, False


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
    for choices in (schema.get("oneOf"), schema.get("anyOf")):
        if choices:
            return " or ".join(dict.fromkeys(_kind(each, schemas) for each in choices))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"] if value or value == 0) or "empty"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), schemas)}"
    kind = str(schema.get("format") or schema.get("type") or ("object" if "properties" in schema else "anything"))
    return {"date-time": "time", "uuid": "UUID", "uri": "URL"}.get(kind, kind) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f" from {low}" if high is None else f" up to {high}" if low is None else f" from {low} to {high}"
