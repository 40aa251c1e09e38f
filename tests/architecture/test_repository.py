"""What must not stand in any committed file, and what must stand in each folder."""

from __future__ import annotations

import re
import subprocess

from tests.architecture.environment import ROOT

# Written in pieces, so that this file does not contain what it forbids.
FORBIDDEN = {
    "a package registry's host": r"\b(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b|\bdeb\.debian\." + "org",
    "a path of somebody's machine": r"(?<![\w./-])/(?:root|work|home/\w+)/",
    "a number of a tracker": r"\bissue #?" + r"\d+\b",
    "a secret of a payment provider": r"\b[sr]k_live_" + r"\w{8,}|\bwhsec_[A-Za-z0-9]{24,}",
    "a merge conflict": r"^(?:<{7}|>{7}) ",
}
BINARY = {".png", ".gguf", ".pdf", ".woff2", ".ttf", ".ico", ".mo", ".bin", ".npz", ".br", ".gz", ".safetensors"}
# Other people's texts, unchanged.
FOREIGN = ("static/vendor/", "tests/browser/vendor/axe-core/", "LICENSE", "tests/architecture/data/")


def tracked_files() -> list[str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def test_no_committed_file_contains_a_forbidden_string() -> None:
    found = []
    for name in tracked_files():
        if (ROOT / name).suffix in BINARY or name.startswith(FOREIGN):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for meaning, pattern in FORBIDDEN.items():
            if match := re.search(pattern, text, re.MULTILINE):
                line = text[: match.start()].count("\n") + 1
                found.append(f"{name}:{line} has {meaning}: {match[0]}")
    assert not found, "\n".join(found)


def test_no_committed_file_is_large() -> None:
    """Model weights and the like come from packages; a clone stays small."""
    large = [name for name in tracked_files() if (ROOT / name).stat().st_size > 1_000_000]
    assert not large


def test_no_module_is_too_long_to_read() -> None:
    generated = re.compile(r"/protos/|/migrations/")
    long = [
        name
        for name in tracked_files()
        if name.endswith(".py") and not generated.search(name) and len((ROOT / name).read_text().splitlines()) > 500
    ]
    assert not long, "split by noun: " + ", ".join(long)


def test_links_in_the_documentation_lead_somewhere() -> None:
    broken = []
    for name in tracked_files():
        if not name.endswith(".md"):
            continue
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", (ROOT / name).read_text()):
            if not ((ROOT / name).parent / target).exists():
                broken.append(f"{name}: {target}")
    assert not broken, "\n".join(broken)


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    promised = (
        *("setup", "up", "down", "check", "test", "test-gpu", "protos", "migrations"),
        *("bench", "lock", "assets", "demo-key", "operator", "golden"),
    )
    for target in promised:
        assert re.search(rf"^{target}:.*## \S", text, re.MULTILINE), f"make {target} has no help line"
