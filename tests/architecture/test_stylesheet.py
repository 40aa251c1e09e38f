"""static/css/portal.css is what `make assets` would build now, as far as can be told without Node."""

from __future__ import annotations

import re
from hashlib import sha256

from tests.architecture.environment import ROOT

BUILT = ROOT / "static" / "css" / "portal.css"
SOURCES = sorted((ROOT / "config" / "assets" / "css").iterdir())
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static" / "js").glob("*.js"))
MODULES = sorted(path for app in ("portal", "api", "billing", "config") for path in (ROOT / app).rglob("*.py"))

TAG = r"\{[%{].*?[%}]\}"
ATTRIBUTE = re.compile(rf'\sclass="((?:[^"{{]|{TAG})*)"')
# make("td", "num"), element.className = `badge badge-${kind}`, classList.toggle("is-bad", …)
IN_A_SCRIPT = re.compile(r"""(?:make\("\w+", |className = |classList\.\w+\()["`]([^"`$]*)""")
IN_A_WIDGET = re.compile(r'"class": "([\w -]*)"')
SELECTOR = re.compile(r"\.(-?[a-zA-Z](?:\\.|[\w-])*)")
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def words(text: str) -> set[str]:
    """Class names of an attribute; what is put in by a tag, and a name that it completes, count as none."""
    return {word for word in re.sub(TAG, " ", text).split() if not word.endswith("-")}


def named_classes() -> dict[str, str]:
    """Each class that a page may have, and a file that names it."""
    found = {}
    for paths, pattern in ((TEMPLATES, ATTRIBUTE), (SCRIPTS, IN_A_SCRIPT), (MODULES, IN_A_WIDGET)):
        for path in paths:
            for text in pattern.findall(path.read_text()):
                found |= dict.fromkeys(words(text), str(path.relative_to(ROOT)))
    return found


def classes(css: str) -> set[str]:
    return {re.sub(r"\\(.)", r"\1", name) for name in SELECTOR.findall(css)}


def test_the_stylesheet_was_built_of_its_sources() -> None:
    digest = sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()
    assert digest in BUILT.read_text().splitlines()[0], "run: make assets"


def test_every_class_that_a_page_names_has_a_rule() -> None:
    """A utility comes with the build after the template that names it; a part has to be written."""
    found = named_classes()
    assert len(found) > 200
    missing = {name: found[name] for name in found.keys() - classes(BUILT.read_text())}
    assert not missing, f"run: make assets, unless it is misspelt: {missing}"


def test_every_part_is_used() -> None:
    texts = [path.read_text() for path in (*TEMPLATES, *SCRIPTS, *MODULES)]
    used = {word for text in texts for word in re.findall(r"[a-zA-Z][\w-]*", text)}
    # badge-{{ kind }}, turn-${role}
    completed = tuple({start for text in texts for start in re.findall(r"([a-z]+-)(?:\{\{|\$\{)", text)})
    parts = classes(COMMENT.sub("", "".join(path.read_text() for path in SOURCES)))
    unused = {name for name in parts - used if not name.startswith(completed)}
    assert not unused, f"rules that nothing uses: {unused}"
