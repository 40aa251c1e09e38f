"""Which JSON Schema constrained decoding enforces: one table, and the walk that holds every schema against it.

A keyword that is not in the table is refused by name where the caller asked for strictness, and left out (which only
allows more) where not. Nothing is ignored in silence. docs/engine/structured-output.md prints the table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from llguidance import LLMatcher, LLParserLimits, regex_to_lark

from inference_grpc.errors import UnsupportedSchema
from inference_grpc.text.output_parser.values import decode, resolve, types_of

Schema = dict[str, Any]  # free form by nature

# Work that a hostile schema can cause, counted by the library itself, so that it ends in time on any machine: at about
# 50 000 units of fuel a millisecond a grammar is given up after some 20 ms, a mask after 15 ms.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000, max_lexer_states=50_000,
    max_grammar_size=500_000, verbose_errors=False,
)  # fmt: skip
MAX_SCHEMA_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_SUBSCHEMAS = 2000

TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

_YEAR = r"(([0-9]{3}[1-9])|([0-9]{2}[1-9]0)|([0-9][1-9]00)|([1-9]000))"
_LEAP_YEAR = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])"
# The library's own know no leap years.
EXACT_FORMATS = {"date": _DATE, "date-time": f"{_DATE}T{TIME}"}

Group = Literal["any", "object", "array", "string", "number", "composition", "reference"]


@dataclass(frozen=True, slots=True)
class Keyword:
    group: Group
    note: str = ""


ENFORCED: dict[str, Keyword] = {
    "type": Keyword("any", "One name or a list of names."),
    "enum": Keyword("any"),
    "const": Keyword("any"),
    "properties": Keyword("object", "Generated in the order of the schema."),
    "required": Keyword("object"),
    "additionalProperties": Keyword(
        "object", "Where it is absent beside `properties`, no others are generated, unless the schema composes objects."
    ),
    "patternProperties": Keyword("object", "The patterns must be disjoint; keys may repeat."),
    "minProperties": Keyword("object", "Only where all of `properties` are required, or for 0 and 1."),
    "maxProperties": Keyword("object", "As `minProperties`."),
    "items": Keyword("array", "A schema; a list of schemas is spelt `prefixItems`."),
    "prefixItems": Keyword("array"),
    "minItems": Keyword("array"),
    "maxItems": Keyword("array"),
    "minLength": Keyword("string"),
    "maxLength": Keyword("string"),
    "pattern": Keyword("string", "Regular expression without look-around, back-references or word boundaries."),
    "format": Keyword("string", "One of " + ", ".join(f"`{name}`" for name in FORMATS) + "."),
    "minimum": Keyword("number"),
    "maximum": Keyword("number"),
    "exclusiveMinimum": Keyword("number"),
    "exclusiveMaximum": Keyword("number"),
    "multipleOf": Keyword("number"),
    "anyOf": Keyword("composition"),
    "oneOf": Keyword("composition", "Only where choices provably exclude each other: by type, or by a fixed property."),
    "allOf": Keyword("composition", "Merged; some pairs of schemas cannot be."),
    "$ref": Keyword("reference", "Within the schema (`#/$defs/name`), recursion included."),
    "$defs": Keyword("reference"),
    "definitions": Keyword("reference"),
}

# They describe and never decide whether a value is valid. So does every keyword that begins with `x-`.
ANNOTATIONS = (
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id", "contentEncoding", "contentMediaType", "discriminator",
)  # fmt: skip

# No validator may reject a value for these, so that they say nothing in themselves.
_VACUOUS: dict[str, object] = {"uniqueItems": False, "nullable": False, "unevaluatedProperties": True}

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")
_COUNTS = ("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_REMEDIES = {"nullable": 'Use "type": [..., "null"].', "additionalItems": "Use `prefixItems` and `items`."}


def parse_schema(text: str, *, param: str = "response_format") -> Schema:
    """JSON text of a schema to a schema ready to be compiled, strictly. Raises `UnsupportedSchema`."""
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise UnsupportedSchema(
            f"The schema is larger than {MAX_SCHEMA_BYTES} bytes.", keyword="", limit=MAX_SCHEMA_BYTES, param=param
        )
    try:
        schema = decode(text)
    except ValueError as error:
        raise UnsupportedSchema(f"The schema is not JSON: {error}", keyword="", param=param) from error
    return strict_schema(schema)


def strict_schema(schema: Any) -> Schema:
    """`schema` reduced to what the table enforces. Raises `UnsupportedSchema` with keyword and path of what is not."""
    cleaned = _Cleaner(schema, is_strict=True).clean()
    if message := _refusal(cleaned):
        keyword = _keyword_of(message)
        path = _path_to(keyword, cleaned)
        raise UnsupportedSchema(f"{keyword!r} at {path} cannot be enforced: {message}", keyword=keyword, path=path)
    return cleaned


def relaxed_schema(schema: Any) -> Schema:
    """A schema that `schema` implies and that can be enforced: what cannot is left out, down to any object."""
    try:
        cleaned = _Cleaner(schema, is_strict=False).clean()
    except UnsupportedSchema:
        return {"type": "object"}
    return {"type": "object"} if _refusal(cleaned) else cleaned


def is_pattern(pattern: str) -> bool:
    """Whether `pattern` is a regular expression that can be enforced."""
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), limits=LIMITS)


def ascii_classes(pattern: str) -> str:
    r"""`pattern` with `\d` and `\w` as JavaScript and JSON Schema mean them, fit to stand between slashes.

    A weak model would otherwise write its digits in some rare script.
    """
    spelt: str = regex_to_lark(pattern, "dw")
    return spelt


class _Cleaner:
    """One walk over one schema."""

    def __init__(self, root: Any, *, is_strict: bool) -> None:
        self._root = root
        self._is_strict = is_strict
        self._subschemas = 0
        self._closes_objects = isinstance(root, dict) and not _composes(root)

    def clean(self) -> Schema:
        cleaned = self._schema(self._root, "#", 0)
        if isinstance(cleaned, bool):
            # `false` allows nothing at all and is left for the compiler to refuse.
            return {} if cleaned else {"enum": []}
        return cleaned

    def _schema(self, schema: Any, path: str, depth: int) -> Schema | bool:
        if isinstance(schema, bool):
            return schema
        if depth > MAX_DEPTH:
            raise _too_deep(path)
        self._subschemas += 1
        if self._subschemas > MAX_SUBSCHEMAS:
            raise UnsupportedSchema(
                f"The schema holds more than {MAX_SUBSCHEMAS} schemas.", keyword="", path=path, limit=MAX_SUBSCHEMAS
            )
        if not isinstance(schema, dict):
            raise UnsupportedSchema(f"At {path} stands no schema.", keyword=_last(path), path=path)
        cleaned: Schema = {}
        for keyword, value in schema.items():
            if keyword in ANNOTATIONS or keyword.startswith("x-"):
                continue
            if keyword in _VACUOUS and value is _VACUOUS[keyword]:
                continue
            where = f"{path}/{_escaped(keyword)}"
            problem = self._problem(keyword, value)
            if problem is None:
                cleaned[keyword] = self._value(keyword, value, where, depth)
            elif self._is_strict:
                raise UnsupportedSchema(
                    f"The schema keyword {keyword!r} at {where} {problem}", keyword=keyword, path=where
                )
        if cleaned.get("format") in EXACT_FORMATS:
            self._spell_out_format(cleaned)
        # The compiler can prove less: it does not look behind references, and gives up on many choices.
        if "oneOf" in cleaned and (not self._is_strict or self._exclude_each_other(schema["oneOf"])):
            choices = cleaned.pop("oneOf")
            if "anyOf" in cleaned:
                cleaned["allOf"] = [*cleaned.get("allOf", []), {"anyOf": choices}]
            else:
                cleaned["anyOf"] = choices
        if self._closes_objects and _is_closable(cleaned):
            cleaned["additionalProperties"] = False
        return cleaned

    def _value(self, keyword: str, value: Any, path: str, depth: int) -> Any:
        if keyword in _SCHEMA_MAPS:
            return {name: self._schema(part, f"{path}/{_escaped(name)}", depth + 1) for name, part in value.items()}
        if keyword in _SCHEMA_LISTS:
            return [self._schema(part, f"{path}/{index}", depth + 1) for index, part in enumerate(value)]
        if keyword in _SCHEMAS:
            return self._schema(value, path, depth + 1)
        if keyword == "pattern":
            return ascii_classes(value)
        return value

    def _spell_out_format(self, cleaned: Schema) -> None:
        pattern = f"^({EXACT_FORMATS[cleaned.pop('format')]})$"
        if "pattern" in cleaned:
            cleaned["allOf"] = [*cleaned.get("allOf", []), {"pattern": pattern}]
        else:
            cleaned["pattern"] = pattern

    def _exclude_each_other(self, choices: list[Any]) -> bool:
        """Whether no value can be of two choices: their types differ, or a property that both require does."""
        types = [types_of(choice, self._root) for choice in choices]
        if sum(map(len, types)) == len(frozenset().union(*types)):
            return True
        tags = [_tags(self._target(choice)) for choice in choices]
        for name in set(tags[0]).intersection(*tags[1:]):
            values = [value for tag in tags for value in tag[name]]
            if len(values) == len(set(values)):
                return True
        return False

    def _target(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            schema = resolve(schema["$ref"], self._root)
        return schema

    def _problem(self, keyword: str, value: Any) -> str | None:
        """Why this keyword with this value cannot be enforced, as the end of a sentence; None if it can."""
        if keyword not in ENFORCED:
            return "is not supported. " + _REMEDIES.get(keyword, "Remove it, or state it in the description.")
        match keyword:
            case "type":
                names = value if isinstance(value, list) else [value]
                is_right = bool(names) and all(name in TYPES for name in names)
            case "enum":
                is_right = isinstance(value, list) and bool(value)
            case "required":
                is_right = isinstance(value, list) and all(isinstance(name, str) for name in value)
            case "format":
                if value not in FORMATS:
                    return f"has the unsupported value {value!r}. Supported are {', '.join(FORMATS)}."
                is_right = True
            case "pattern":
                if isinstance(value, str) and not is_pattern(value):
                    return f"has the unsupported value {value!r}: no look-around, back-references or word boundaries."
                is_right = isinstance(value, str)
            case "$ref":
                if isinstance(value, str) and not isinstance(resolve(value, self._root), dict | bool):
                    return f"has the value {value!r}, which names nothing in this schema."
                is_right = isinstance(value, str)
            case _ if keyword in _SCHEMA_MAPS:
                is_right = isinstance(value, dict)
            case _ if keyword in _SCHEMA_LISTS:
                is_right = isinstance(value, list) and bool(value)
            case _ if keyword in _SCHEMAS:
                is_right = isinstance(value, dict | bool)
            case _ if keyword in _COUNTS:
                is_right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            case _ if keyword in _NUMBERS:
                is_right = isinstance(value, int | float) and not isinstance(value, bool)
            case _:
                is_right = True
        return None if is_right else f"has a value that JSON Schema does not allow: {json.dumps(value)[:80]}."


def _composes(schema: Any, depth: int = 0) -> bool:
    """Whether one value must satisfy several object schemas at once: to close one of them would shut out the others."""
    if isinstance(schema, list):
        return any(_composes(part, depth + 1) for part in schema)
    if not isinstance(schema, dict) or depth > 2 * MAX_DEPTH:
        return False
    if "allOf" in schema or any(
        keyword in schema and _asserts_beside(schema, keyword) for keyword in ("$ref", "anyOf", "oneOf")
    ):
        return True
    return any(_composes(part, depth + 1) for part in schema.values())


def _asserts_beside(schema: Schema, keyword: str) -> bool:
    """Whether anything but `keyword`, definitions and annotations stands in the schema."""
    return bool(schema.keys() & ENFORCED.keys() - {keyword, "$defs", "definitions"})


def _tags(schema: Any) -> dict[str, list[str]]:
    """Of an object's required properties that take fixed values only: those, as JSON text."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return {}
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, dict):
        return {}
    found: dict[str, list[str]] = {}
    for name in required:
        part = properties.get(name) if isinstance(name, str) else None
        if isinstance(part, dict) and ("const" in part or isinstance(part.get("enum"), list)):
            values = [part["const"]] if "const" in part else part["enum"]
            found[name] = [json.dumps(value, sort_keys=True) for value in values]
    return found


def _is_closable(schema: Schema) -> bool:
    return (
        "properties" in schema
        and not schema.keys() & {"additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref"}
        and set(schema.get("required", ())) <= schema["properties"].keys()
    )


def _refusal(schema: Schema) -> str:
    """What the compiler says against the schema; empty if nothing."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    except ValueError as error:  # NaN, half a surrogate pair: Python's JSON knows more than JSON
        return str(error)
    return LLMatcher.validate_grammar(grammar, limits=LIMITS)


def _keyword_of(message: str) -> str:
    """The keyword that the compiler's message names first."""
    message = message.replace("min/maxProperties", "minProperties")
    named = [keyword for keyword in ENFORCED if keyword in message]
    return min(named, key=message.index, default="")


def _path_to(keyword: str, schema: Any, path: str = "#") -> str:
    """Where `keyword` stands first; the root if nowhere."""
    if isinstance(schema, dict):
        if keyword in schema:
            return f"{path}/{_escaped(keyword)}"
        parts: list[tuple[str, Any]] = list(schema.items())
    elif isinstance(schema, list):
        parts = [(str(index), part) for index, part in enumerate(schema)]
    else:
        return "#"
    for name, part in parts:
        if (found := _path_to(keyword, part, f"{path}/{_escaped(name)}")) != "#":
            return found
    return "#"


def _too_deep(path: str) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"The schema is nested more than {MAX_DEPTH} levels deep. Move inner schemas to `$defs`.",
        keyword="", path=path, limit=MAX_DEPTH,
    )  # fmt: skip


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _last(path: str) -> str:
    return path.rsplit("/", 2)[-1]
