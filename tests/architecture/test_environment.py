"""`.env.example` and docker-compose.yml say exactly what the code reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.architecture.environment import LOCAL_VARIABLES, ROOT, Variable, engine_variables, web_variables

EXAMPLE_LINE = re.compile(r"^(?P<comment># )?(?P<name>[A-Z][A-Z0-9_]*)=(?P<value>.*)$")
# Read by other programs' images, or by the compose file itself.
IMAGE_VARIABLES = {
    "postgres": {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"},
    "grafana": {"GF_SECURITY_ADMIN_PASSWORD"},
}
COMPOSE_VARIABLES = {"DATABASE_PASSWORD", "GRAFANA_PASSWORD", "GRAFANA_PORT"}
ENGINE_SERVICES = {"engine"}


def example() -> dict[str, tuple[str, bool]]:
    """Name to (value, whether it stands commented out)."""
    matches = [EXAMPLE_LINE.match(line) for line in (ROOT / ".env.example").read_text().splitlines()]
    return {match["name"]: (match["value"], bool(match["comment"])) for match in matches if match}


def all_variables() -> dict[str, Variable]:
    local = {name: Variable(name, default, is_required=False) for name, default in LOCAL_VARIABLES.items()}
    return web_variables() | engine_variables() | local


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_example_names_every_variable_and_no_other() -> None:
    assert set(example()) == set(all_variables()) | COMPOSE_VARIABLES


def test_example_shows_the_defaults_of_the_code() -> None:
    shown = example()
    for variable in all_variables().values():
        value, is_comment = shown[variable.name]
        assert is_comment != variable.is_required, f"{variable.name}: only required variables stand without a #"
        if variable.default is not None:
            assert value == variable.default, f"{variable.name}: .env.example shows {value!r}"


def test_each_example_line_has_its_meaning_above() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if match := EXAMPLE_LINE.match(line):
            assert above.startswith("# "), f"{match['name']} has no meaning above it"


def test_compose_file_is_valid_under_the_specification(compose: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "data" / "compose-spec.json").read_text())
    plain = {name: value for name, value in compose.items() if not name.startswith("x-")}
    jsonschema.Draft7Validator(schema).validate(plain)


def test_compose_file_has_the_parts_of_the_product(compose: dict[str, Any]) -> None:
    parts = {"postgres", "valkey", "engine", "web", "worker", "beat", "nginx", "prometheus", "grafana"}
    assert parts <= set(compose["services"])


def test_every_variable_of_the_compose_file_exists(compose: dict[str, Any]) -> None:
    web, engine = set(web_variables()), set(engine_variables())
    for name, service in compose["services"].items():
        allowed = IMAGE_VARIABLES.get(name) or (engine if name in ENGINE_SERVICES else web)
        unknown = set(service.get("environment", {})) - allowed
        assert not unknown, f"{name} sets {unknown}, which nothing reads"


def test_every_required_variable_is_set_in_the_compose_file(compose: dict[str, Any]) -> None:
    required = {variable.name for variable in web_variables().values() if variable.is_required}
    for name in ("prepare", "web", "worker", "beat"):
        missing = required - set(compose["services"][name]["environment"])
        assert not missing, f"{name} lacks {missing}"


def test_the_compose_file_interpolates_only_documented_variables() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    assert used <= set(example())


def test_files_that_the_compose_file_mounts_or_builds_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).is_file(), f"{source} is not there"
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_dockerfiles_copy_only_what_exists_and_keep_torch_and_django_apart() -> None:
    for name, foreign in (("web", ("torch", "kernels", "--extra engine")), ("engine", ("api", "portal", "billing"))):
        text = (ROOT / "docker" / f"{name}.Dockerfile").read_text()
        copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
        for source in " ".join(copied).split():
            assert (ROOT / source).exists(), f"{name}.Dockerfile copies {source}"
            assert source not in foreign
        instructions = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        assert f"--extra {name}" in instructions
