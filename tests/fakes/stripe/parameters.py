"""Form bodies to nested values, checked and converted by the official client's typed parameters."""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import parse_qsl

from typing_extensions import get_type_hints, is_typeddict

from stripe._request_options import RequestOptions
from stripe._stripe_context import StripeContext
from tests.fakes.stripe.errors import Refusal

_OPTION_KEYS = frozenset(RequestOptions.__annotations__)
_DECIMAL_PLACES = 12


def decode(query: str) -> dict[str, Any]:
    """`a[b]=1&c[0]=2` as `{"a": {"b": "1"}, "c": ["2"]}`."""
    tree: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        head, *rest = re.findall(r"[^\[\]]+", name)
        node, key = tree, head
        for part in rest:
            node = node.setdefault(key, {})
            key = part
        node[key] = value
    return _lists(tree)


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    converted = {key: _lists(value) for key, value in node.items()}
    if converted and all(key.isdigit() for key in converted):
        return [converted[key] for key in sorted(converted, key=int)]
    return converted


@cache
def _hints(params: type) -> dict[str, Any]:
    module = importlib.import_module(params.__module__)
    names = {**vars(module), "Mapping": Mapping, "StripeContext": StripeContext}
    hints = get_type_hints(params, globalns=names)
    return {name: hint for name, hint in hints.items() if name not in _OPTION_KEYS}


def check(params: type, values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The values in their types. Raises Refusal on an unknown, a missing and a mistyped parameter."""
    hints = _hints(params)
    for name in values:
        if name not in hints:
            raise Refusal(
                f"Received unknown parameter: {_join(path, name)}", code="parameter_unknown", param=_join(path, name)
            )
    for name in params.__required_keys__ - _OPTION_KEYS:  # type: ignore[attr-defined]
        if name not in values:
            raise Refusal(
                f"Missing required param: {_join(path, name)}.", code="parameter_missing", param=_join(path, name)
            )
    return {name: _convert(hints[name], value, _join(path, name)) for name, value in values.items()}


def _join(path: str, name: str) -> str:
    return f"{path}[{name}]" if path else name


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(hint), value, path)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise Refusal(f"Invalid {path}: must be one of {', '.join(map(str, get_args(hint)))}", param=path)
    if origin is list:
        if isinstance(value, list):
            (inner,) = get_args(hint)
            return [_convert(inner, item, f"{path}[{position}]") for position, item in enumerate(value)]
        raise Refusal("Invalid array", param=path)
    if origin is dict:
        if isinstance(value, dict):
            return {key: _convert(get_args(hint)[1], inner, f"{path}[{key}]") for key, inner in value.items()}
        raise Refusal("Invalid object", param=path)
    if is_typeddict(hint):
        if isinstance(value, dict):
            return check(hint, value, path)
        raise Refusal("Invalid object", param=path)
    return _convert_plain(hint, value, path)


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    # `Literal[...] | str` is how the client writes an enumeration that may grow; today's values are what is allowed.
    literals = [option for option in options if get_origin(option) is Literal and get_args(option) != ("",)]
    if literals and str in options:
        options = tuple(option for option in options if option is not str)
    refusal = None
    for option in options:
        try:
            return _convert(option, value, path)
        except Refusal as error:
            refusal = error
    raise refusal or Refusal("Invalid value", param=path)


def _convert_plain(hint: Any, value: Any, path: str) -> Any:
    if isinstance(value, dict | list):
        raise Refusal("Invalid string", param=path)
    if hint is str:
        return value
    if hint is bool and value in ("true", "false"):
        return value == "true"
    if hint is int and re.fullmatch(r"-?\d+", value):
        return int(value)
    if hint in (Decimal, float):
        return _decimal(value, path)
    raise Refusal(f"Invalid {getattr(hint, '__name__', hint)}: {value}", param=path)


def _decimal(value: str, path: str) -> Decimal:
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise Refusal(f"Invalid decimal: {value}", code="parameter_invalid_decimal", param=path) from None
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > _DECIMAL_PLACES:
        raise Refusal(f"Invalid decimal: {value}; at most {_DECIMAL_PLACES} decimal places", param=path)
    return number
