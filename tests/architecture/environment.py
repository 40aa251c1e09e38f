"""Which environment variables the product reads, found in the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inference_grpc.config import settings as engine_settings

ROOT = Path(__file__).resolve().parents[2]
WEB_PACKAGES = ("config", "api", "portal", "billing")
READERS = {"env_str", "env_bool", "env_int", "env_list", "env_secret", "env_url"}
# Read by the launcher of a local run before there are settings.
LOCAL_VARIABLES = {"PORT": "8000"}


@dataclass(frozen=True)
class Variable:
    name: str
    # The default as `.env.example` has to show it; None when the code computes it or when there is none.
    default: str | None
    is_required: bool
    is_secret: bool = False


def web_variables() -> dict[str, Variable]:
    """Every variable that one of the typed readers of config/env.py is asked for."""
    found: dict[str, Variable] = {}
    for package in WEB_PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for variable in _reads(ast.parse(path.read_text())):
                known = found.setdefault(variable.name, variable)
                assert known == variable, f"{path}: {variable.name} is read with two different defaults"
    return found


def _reads(tree: ast.AST) -> Iterator[Variable]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS):
            continue
        name, *rest = node.args
        if not isinstance(name, ast.Constant):
            continue  # a reader that calls another
        defaults = rest[1:] if node.func.id == "env_url" else rest
        is_required = not defaults and node.func.id != "env_list"
        default = "" if node.func.id == "env_list" and not defaults else None
        if defaults and isinstance(defaults[0], ast.Constant):
            value = defaults[0].value
            default = str(int(value)) if isinstance(value, bool) else str(value)
        elif defaults and isinstance(defaults[0], ast.BinOp):
            default = str(eval(compile(ast.Expression(defaults[0]), "default", "eval"), {"__builtins__": {}}))
        yield Variable(str(name.value), default, is_required, node.func.id in {"env_secret", "env_url"})


def engine_variables() -> dict[str, Variable]:
    variables = [
        Variable(setting.metadata["variable"], str(setting.default), is_required=False) for setting in engine_settings()
    ]
    return {variable.name: variable for variable in variables}
