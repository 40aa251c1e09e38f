"""Who may import whom, and what must stay out of a process."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.environment import ROOT

PACKAGES = ("config", "api", "portal", "billing", "inference_grpc", "kernels")
# Outside packages that only these files may import.
RESERVED = {
    "stripe": {"billing/payments/stripe_gateway.py"},
    "redis": {
        *("api/admission.py", "api/auth.py", "api/credit.py", "api/functions.py", "api/stores.py", "api/valkey.py"),
        "portal/quotas/snapshot.py",
        # For the errors of the channel layer, which speaks to Valkey too.
        "api/live.py",
        # Counts what waits in the broker's lists, which Celery itself has no call for.
        "config/celery_metrics.py",
    },
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_outside_packages_with_one_home_are_imported_nowhere_else() -> None:
    for package, homes in RESERVED.items():
        users = {
            str(path.relative_to(ROOT))
            for path in sources(*PACKAGES)
            if any(name.split(".")[0] == package for name in imports(path))
        }
        assert users <= homes, f"{package} is imported by {users - homes}"


def test_grpc_is_imported_by_the_engine_package_only() -> None:
    users = [path for path in sources("config", "api", "portal", "billing", "kernels") if "grpc" in imports(path)]
    assert not users


def test_web_process_runs_without_torch() -> None:
    """Everything that the web server, worker and beat load, in a process where torch cannot be imported."""
    program = """
import sys
for name in ("torch", "triton", "kernels", "transformers"):
    sys.modules[name] = None
import django
django.setup()
import config.asgi, config.celery, config.urls
config.celery.app.loader.import_default_modules()
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_engine_process_runs_without_django() -> None:
    program = """
import sys
for name in ("django", "celery", "config", "api", "portal", "billing"):
    sys.modules[name] = None
import inference_grpc.server.__main__, inference_grpc.engine, inference_grpc.scripted
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_kernels_package_is_ours() -> None:
    """An outside distribution ships an import package of the same name."""
    spec = importlib.util.find_spec("kernels")
    assert spec is not None
    assert spec.origin == str(ROOT / "kernels" / "__init__.py")


def test_engine_and_kernels_are_valid_for_every_supported_python() -> None:
    for path in sources("inference_grpc", "kernels"):
        ast.parse(path.read_text(), feature_version=(3, 11))
