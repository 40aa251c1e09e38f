"""Files that a command generates are the ones it would generate now."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.environment import ROOT

PROTO = "inference_grpc/protos/v1/inference.proto"
STUBS = ("inference_pb2.py", "inference_pb2.pyi", "inference_pb2_grpc.py")


def test_stubs_are_fresh(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, PROTO], cwd=ROOT, check=True)
    for name in STUBS:
        committed = ROOT / Path(PROTO).parent / name
        assert committed.read_text() == (tmp_path / Path(PROTO).parent / name).read_text(), "run: make protos"


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    output = StringIO()
    try:
        call_command("makemigrations", check=True, dry_run=True, stdout=output)
    except SystemExit:
        pytest.fail(f"run: make migrations\n{output.getvalue()}")


def locked_versions() -> dict[str, str]:
    found = re.findall(r"^([a-z0-9._-]+)==([^ \\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return {canonicalize_name(name): pinned for name, pinned in found}


def test_the_lock_satisfies_every_declared_requirement() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # Installed on its own, by the Makefile: `override-dependencies` keeps it out of the lock.
    overridden = {Requirement(text).name for text in project["tool"]["uv"]["override-dependencies"]}
    locked = locked_versions()
    for texts in project["project"]["optional-dependencies"].values():
        for requirement in map(Requirement, texts):
            if requirement.name in overridden:
                continue
            pinned = locked.get(canonicalize_name(requirement.name))
            assert pinned is not None, f"{requirement.name} is not in requirements.lock; run: make lock"
            assert pinned in requirement.specifier, f"{requirement} and {pinned} disagree; run: make lock"


def test_torch_has_one_version_everywhere() -> None:
    declared = re.findall(r"torch==([0-9.]+)", (ROOT / "pyproject.toml").read_text())
    declared += re.findall(r"torch==([0-9.]+)", (ROOT / "docker" / "engine.Dockerfile").read_text())
    declared += re.findall(r"TORCH_VERSION := ([0-9.]+)", (ROOT / "Makefile").read_text())
    assert set(declared) == {version("torch").split("+")[0]}


def test_the_lock_carries_hashes_and_no_address() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    assert len(re.findall(r"^\S+==", text, re.MULTILINE)) == len(re.findall(r"^\S+==.* \\\n +--hash=", text, re.M))
