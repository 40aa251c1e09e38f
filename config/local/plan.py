"""Which programs make the product on one machine, and the environment they share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from config.local.postgres import EmbeddedPostgres
from config.local.program import Program, answers
from config.local.state import RunFolder, kept_secret
from config.local.valkey import EmbeddedValkey

HEALTH_PATH = "/health"
WORKER_PROCESSES = 2


@dataclass
class Plan:
    """`given` is the outer environment: DATABASE_URL, VALKEY_URL and ENGINE_ADDRESS in it replace embedded parts."""

    var_dir: Path
    port: int
    given: Mapping[str, str]

    @property
    def portal_url(self) -> str:
        return self.given.get("PUBLIC_URL", f"http://127.0.0.1:{self.port}").rstrip("/")

    @property
    def api_url(self) -> str:
        return f"{self.portal_url}/v1"

    @cached_property
    def postgres(self) -> EmbeddedPostgres | None:
        if "DATABASE_URL" in self.given or "DATABASE_URL_FILE" in self.given:
            return None
        return EmbeddedPostgres(self.var_dir / "postgres", self._port("postgres"), self._secret("DATABASE_PASSWORD"))

    @cached_property
    def valkey(self) -> EmbeddedValkey | None:
        if "VALKEY_URL" in self.given or "VALKEY_URL_FILE" in self.given:
            return None
        return EmbeddedValkey(self.var_dir / "valkey", self._port("valkey"), self._secret("VALKEY_PASSWORD"))

    @cached_property
    def engine_address(self) -> str:
        return self.given.get("ENGINE_ADDRESS") or f"127.0.0.1:{self._port('engine')}"

    @cached_property
    def environment(self) -> dict[str, str]:
        """What every program and `manage.py` run with."""
        environment = {
            **self.given,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "VAR_DIR": str(self.var_dir),
            "PUBLIC_URL": self.portal_url,
            "ENGINE_ADDRESS": self.engine_address,
            "PYTHONUNBUFFERED": "1",
        }
        if self.postgres is not None:
            environment["DATABASE_URL"] = self.postgres.url
        if self.valkey is not None:
            environment["VALKEY_URL"] = self.valkey.url
        for name in ("SECRET_KEY", "API_KEY_PEPPER"):
            if name not in self.given and f"{name}_FILE" not in self.given:
                environment[name] = self._secret(name)
        return environment

    def _port(self, name: str) -> int:
        return RunFolder(self.var_dir).kept_port(name)

    def _secret(self, name: str) -> str:
        return kept_secret(self.var_dir / "secrets" / name.lower())

    @cached_property
    def engine(self) -> Program | None:
        if "ENGINE_ADDRESS" in self.given:
            return None
        metrics_port = self._port("engine metrics")
        return Program(
            name="engine",
            argv=[sys.executable, "-m", "inference_grpc.server"],
            # The gRPC port accepts connections before the weights are loaded, the metrics endpoint only afterwards.
            is_ready=lambda: answers("127.0.0.1", metrics_port),
            environment={
                **self.environment,
                "ENGINE_LISTEN": self.engine_address,
                "ENGINE_JOURNAL_DIR": str(self.var_dir / "engine"),
                "ENGINE_METRICS_PORT": str(metrics_port),
            },
            stop_timeout_s=30,
        )

    @property
    def web(self) -> Program:
        options = ["--interface", "asgi", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        return Program(
            name="web",
            argv=[sys.executable, "-m", "granian", *options, "--no-access-log", "config.asgi:application"],
            is_ready=lambda: is_healthy(self.port),
            environment=self.environment,
            stop_timeout_s=30,
        )

    @property
    def worker(self) -> Program:
        options = [
            "--concurrency",
            str(WORKER_PROCESSES),
            "--loglevel",
            "WARNING",
            "--without-gossip",
            "--without-mingle",
        ]
        return self._celery("worker", options)

    @property
    def beat(self) -> Program:
        return self._celery("beat", ["--pidfile="])

    def _celery(self, name: str, options: list[str]) -> Program:
        ready_file = self.var_dir / "run" / f"{name}.ready"
        return Program(
            name=name,
            argv=[sys.executable, "-m", "celery", "--quiet", "--app", "config.celery", name, *options],
            is_ready=ready_file.exists,
            environment={**self.environment, "READY_FILE": str(ready_file)},
            prepare=lambda: ready_file.unlink(missing_ok=True),
            stop_timeout_s=30,
        )


def is_healthy(port: int) -> bool:
    """Whether the web server answers its health check."""
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", HEALTH_PATH)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
