"""The real gateway for tests: a web server and a scripted engine as processes, on a database of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import httpx2 as httpx
import openai
from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction

from api.tasks import pull_from
from billing.ledger.selectors import available_nano, balance_nano
from billing.reconciliation.services import apply_receipts
from billing.usage.models import UsageRecord
from config.local.program import free_port
from inference_grpc.client import EngineClient, EngineInfo
from inference_grpc.errors import EngineError
from portal.api_keys.services import issue
from portal.catalog.models import Deployment, Model
from portal.organizations.models import Organization, Project
from portal.organizations.services import create_organization, set_responses_kept
from portal.quotas import snapshot
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import make_user

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]
# A machine may stand still for many seconds: waiting that long costs nothing where it does not.
PATIENCE_S = 120.0
# A start imports thousands of modules, beside others that do.
START_S = 300.0
# Two seconds are promised. This is shorter than the gateway's caches live, so that only an announcement explains it.
SOON_S = 20.0
# Tokens a second, each tried more than once: an engine's first pause may be as short as it likes.
PACES = (20.0, 20.0, 2.0, 2.0, 0.4, 0.4)
# Neither closes a connection that a client, stopped for a while, still takes for open.
SERVERS = {
    "granian": [
        "granian", "--interface", "asgi", "--host", "127.0.0.1", "--workers", "1", "--no-access-log",
        "--http1-header-read-timeout", "60000", "--port",
    ],
    "uvicorn": [
        "uvicorn", "--host", "127.0.0.1", "--no-access-log", "--timeout-graceful-shutdown", "30",
        "--timeout-keep-alive", "600", "--port",
    ],
}  # fmt: skip


def eventually(check: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The first true value of `check`; what another process does cannot be awaited otherwise.

    A turn counts as a second at most: while the machine stands still, nobody has the time to do anything.
    """
    waited_s, looked_at = 0.0, time.monotonic()
    while not (value := check()):
        now = time.monotonic()
        waited_s, looked_at = waited_s + min(now - looked_at, 1.0), now
        if waited_s > patience_s:
            raise AssertionError(f"did not happen within {patience_s} s")
        time.sleep(0.02)
    return value


def at_some_pace(attempt: Callable[[float], T | None]) -> T:
    """What `attempt` makes of the first pace that the machine keeps up with.

    What is to happen between two tokens does not, where the machine stands still just then and both come at once:
    `attempt` returns None, and is made again with more time.
    """
    for pace in PACES:
        if (made := attempt(pace)) is not None:
            return made
    raise AssertionError(f"not at {PACES[-1]} tokens a second either")


@dataclass
class Process:
    command: list[str]
    log: Path
    environment: dict[str, str]
    is_ready: Callable[[], bool]
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                cwd=ROOT,
                # Compiled modules are kept: a start takes seconds without them.
                env={name: value for name, value in self.environment.items() if name != "PYTHONDONTWRITEBYTECODE"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.command[0]} did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self.popen is not None:
            self.popen.terminate()
            self.popen.wait(PATIENCE_S)
            self.popen = None

    def kill(self) -> None:
        """kill -9, of the workers too."""
        assert self.popen is not None
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        for pid in [*map(int, children), self.popen.pid]:
            os.kill(pid, signal.SIGKILL)
        self.popen.wait(PATIENCE_S)
        self.popen = None


class Engine(Process):
    def __init__(self, folder: Path, scenario: str = "") -> None:
        """`scenario` is the text of a scenario file (inference_grpc/scripted/scenario.py)."""
        self.address = f"127.0.0.1:{free_port()}"
        self.mark = f"READY grpc={self.address}"
        scenario_file = folder / f"scenario-{uuid.uuid4().hex[:8]}.toml"
        scenario_file.write_text(scenario)
        journal = folder / f"journal-{uuid.uuid4().hex[:8]}"
        options = {
            "engine": "scripted", "model": "smollm2-135m-instruct", "listen": self.address,
            "scenario": str(scenario_file), "journal": str(journal),
        }  # fmt: skip
        super().__init__(
            command=[
                "inference_grpc.server",
                *(part for name, value in options.items() for part in (f"--{name}", value)),
            ],
            log=folder / f"engine-{self.address.rpartition(':')[2]}.log",
            environment=dict(os.environ),
            is_ready=lambda: self.log.exists() and self.log.read_text().count(self.mark) > self.starts,
        )
        self.starts = 0

    def start(self) -> None:
        self.starts = self.log.read_text().count(self.mark) if self.log.exists() else 0
        super().start()


def engine_info(engine: Engine) -> EngineInfo:
    async def ask() -> EngineInfo:
        async with EngineClient(engine.address, timeout_s=PATIENCE_S) as client:
            return await client.get_info()

    return asyncio.run(ask())


def await_word(lines: Iterator[str]) -> None:
    """Read a stream on to the answer's beginning, past what only keeps the connection alive.

    Whoever lets go of `lines` leaves the call.
    """
    while '"content":' not in next(lines):
        pass


def tokens_of_idle(engine: Engine) -> int:
    """How many tokens it has made, once no call of before makes any more."""

    def idle() -> EngineInfo | None:
        info = engine_info(engine)
        return None if info.running or info.waiting else info

    return int(eventually(idle).completion_tokens)


class Web(Process):
    def __init__(self, folder: Path, kind: str, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        database = connection.settings_dict
        login = f"{database['USER']}:{database['PASSWORD']}@" if database["PASSWORD"] else f"{database['USER']}@"
        super().__init__(
            command=[*SERVERS[kind], str(self.port), "config.asgi:application"],
            log=folder / f"{kind}-{self.port}.log",
            environment={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "DATABASE_URL": f"postgresql://{login}{database['HOST']}:{database['PORT']}/{database['NAME']}",
                "VAR_DIR": str(folder / "var"),
                "DRAIN_TIMEOUT_S": "3",
                **environment,
            },
            is_ready=self._answers,
        )

    def cpu_s(self) -> float:
        """User and system time of the server and its workers so far."""
        assert self.popen is not None
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        ticks = 0
        for pid in [str(self.popen.pid), *children]:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=20).status_code == 200
        except httpx.HTTPError:
            return False


@dataclass
class Account:
    """An organization with a key, and what is recorded of it."""

    organization: Organization
    project: Project
    secret: str
    web: Web
    api_key: Any = field(repr=False, default=None)

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"max_retries": 0, "timeout": PATIENCE_S, **options}
        return openai.OpenAI(base_url=f"{self.web.url}/v1", api_key=self.secret, **options)

    @cached_property
    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.secret}"}
        return httpx.Client(base_url=self.web.url, headers=headers, timeout=PATIENCE_S)

    def chat(self, prompt: str, **fields: Any) -> dict[str, Any]:
        """A Chat Completions body."""
        return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}

    def post(self, prompt: str, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
        return self.http.post(path, json=self.chat(prompt, **fields))

    def records(self) -> list[UsageRecord]:
        return list(UsageRecord.objects.filter(organization=self.organization).order_by("request_id"))

    def record(self) -> UsageRecord:
        """The one record, once it is finished."""

        def finished() -> UsageRecord | None:
            (row,) = self.records() or (None,)
            return row if row is not None and row.status != "started" else None

        return eventually(finished)

    @property
    def balance_nano(self) -> int:
        return balance_nano(self.organization.id)

    @property
    def copy_nano(self) -> int | None:
        """The credit copy in Valkey."""
        value = snapshot.client().hget(f"credit:{self.organization.id}", "available")
        return None if value is None else int(value)

    def assert_books_agree(self) -> None:
        """Once nothing runs: the balance, the sum of the records and the copy in Valkey tell the same."""
        eventually(lambda: all(row.status != "started" for row in self.records()))
        spent = sum(row.cost_nano for row in self.records())
        assert self.balance_nano == settings.FREE_CREDIT_NANO - spent
        assert available_nano(self.organization.id) == self.balance_nano
        eventually(lambda: self.copy_nano == self.balance_nano)


MODEL = "smollm2-135m-instruct"


def make_account(web: Web, name: str = "") -> Account:
    owner = make_user(f"ada-{uuid.uuid4().hex[:10]}")
    organization = create_organization(owner=owner, name=name or f"Org {uuid.uuid4().hex[:8]}")
    # Where it is about noon: no day, and so no week and no month, ends while a test runs.
    organization.time_zone = f"Etc/GMT{datetime.now(UTC).hour - 12:+}"
    organization.save(update_fields=["time_zone"])
    project = Project.objects.get(organization=organization, is_default=True)
    issued = issue(project=project, name="test", actor=owner)
    return Account(organization, project, issued.secret, web, issued.api_key)


def keep_responses(account: Account) -> Account:
    """By default nothing is kept."""
    set_responses_kept(organization=account.organization, are_kept=True, actor=account.api_key.created_by)
    return account


def set_limit(account: Account, kind: str, window: str, limit: int, **scope: Any) -> Quota:
    quota = change_quota(
        organization=account.organization,
        kind=QuotaKind(kind),
        window=Window(window),
        limit=limit,
        actor=account.api_key.created_by,
        **scope,
    )
    assert quota is not None
    snapshot.publish(account.organization.id)
    return quota


def make_model(name: str, *addresses: str, kind: str = "engine", upstream: str = "", **fields: Any) -> Model:
    from tests.factories.portal import make_model as make

    # At once: a gateway that read its catalogue in between would say that it does not know the model.
    with transaction.atomic():
        model = make(name)
        Deployment.objects.filter(model=model).delete()
        for address in addresses:
            Deployment.objects.create(model=model, address=address, kind=kind, upstream_model=upstream or MODEL)
        if fields:
            Model.objects.filter(id=model.id).update(**fields)
    return model


def await_embeddings(web: Web, model: str) -> None:
    """Until the gateway's session with the engine stands: then it knows that the engine embeds."""
    other = make_account(web)
    eventually(lambda: other.http.post("/v1/embeddings", json={"model": model, "input": "x"}).status_code == 200)


def pull_receipts(account: Account, engine: Engine) -> None:
    """Until none of the account's records is open."""

    def receipts_came() -> bool:
        with suppress(EngineError):  # the next turn asks again
            pull_from(engine.address)
            apply_receipts(source=engine_info(engine).engine_id, receipts=[], grace=timedelta(0))
        return all(record.status != "started" for record in account.records())

    eventually(receipts_came)


@contextmanager
def database_of_its_own(name: str) -> Iterator[None]:
    """A migrated database that other processes see; nothing written there is seen by other tests."""
    original = connection.settings_dict["NAME"]
    connection.close()
    with admin_cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        cursor.execute(f'CREATE DATABASE "{name}"')
    connection.settings_dict["NAME"] = name
    try:
        call_command("migrate", verbosity=0)
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = original
        with admin_cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def admin_cursor() -> Iterator[Any]:
    with connection._nodb_cursor() as cursor:
        yield cursor
