"""The official JavaScript clients against the real gateway: openai-node, @anthropic-ai/sdk and Vercel's AI SDK.

`tests/node` holds their tests and the lock of their packages. These are installed once, by npm and from that lock, into
the user's cache folder: the checkout stays as it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.api.live.service import MODEL, ROOT, Account, keep_responses

SOURCE = ROOT / "tests" / "node"
# Of node itself, for the built-in test runner.
FLOOR = 20
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 280


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@pytest.fixture(scope="session")
def node() -> str:
    program = needs("node")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < FLOOR:
        pytest.skip(f"node {version.strip()} is older than {FLOOR}")
    return program


@pytest.fixture(scope="session")
def packages(node: str) -> Path:
    """A folder that holds what the lock names. One process installs, others wait for it."""
    npm = needs("npm")
    lock = SOURCE / "package-lock.json"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfactory"
    folder = cache / f"node-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        done = folder / "installed"
        if not done.exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCE / name, folder)
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            installed = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
            if installed.returncode and re.search("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT", installed.stderr):
                pytest.skip("npm's registry cannot be reached")
            assert installed.returncode == 0, installed.stderr[-4000:]
            done.touch()
    return folder


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCE.glob("*.test.mjs")))
def test_official_javascript_clients(name: str, node: str, packages: Path, account: Account, tmp_path: Path) -> None:
    # Modules are looked up beside the file that imports them.
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    shutil.copy(SOURCE / name, tmp_path)
    environment = {
        "PATH": os.environ["PATH"],
        "BASE_URL": f"{account.web.url}/v1",
        "API_KEY": keep_responses(account).secret,
        "MODEL": MODEL,
    }
    run = subprocess.run(
        [node, "--test", "--test-reporter=tap", name],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    written = len(re.findall(r"^ *test\(", (SOURCE / name).read_text(), re.MULTILINE))
    passed = int(re.findall(r"^# pass (\d+)$", run.stdout, re.MULTILINE)[-1])
    assert passed >= written > 0
    account.assert_books_agree()
