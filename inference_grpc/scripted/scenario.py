"""The scenario file of a scripted engine: its timing, and directives for requests whose prompts hold none.

step_ms = 1.0                # time of one engine step; 0 = as fast as it goes
context_tokens = 8192
embedding_dimensions = 64    # of the vectors it makes; 0, the default: it does not embed
embeds_base64 = false        # vectors are numbers, whatever is asked, as from many servers; default true
directives = "TTFT:20"       # for every request

[[rules]]                    # in order; each that fits adds its directives
when = "weather"             # regular expression, searched in the last user message; default: any
tenant = "7"                 # default: any
share = 0.02                 # of the requests that fit, chosen by request id; default 1
directives = "FAIL:device_fault@5"
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_grpc.config import ConfigError
from inference_grpc.errors import InvalidRequest
from inference_grpc.scripted.directives import parse_directives


@dataclass(frozen=True, slots=True)
class Rule:
    when: re.Pattern[str]
    tenant: str | None
    share: float
    directives: str

    def fits(self, request_id: str, tenant: str, text: str) -> bool:
        if self.tenant not in (None, tenant) or self.when.search(text) is None:
            return False
        # By id and rule: a repeat of the same request meets the same fault, and two rules choose independently.
        digest = hashlib.blake2b(f"{request_id}|{self.directives}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) < self.share * 2**64


@dataclass(frozen=True, slots=True)
class Scenario:
    step_s: float = 0.001
    context_tokens: int = 8192
    embedding_dimensions: int = 0
    embeds_base64: bool = True
    directives: str = ""
    rules: tuple[Rule, ...] = ()

    def directives_for(self, request_id: str, tenant: str, text: str) -> str:
        """The text in which a request's directives are looked for: the file's first, the prompt's own last."""
        parts = [self.directives]
        parts += [rule.directives for rule in self.rules if rule.fits(request_id, tenant, text)]
        return "\n".join([*parts, text])


def read_scenario(path: str) -> Scenario:
    if not path:
        return Scenario()
    try:
        content = tomllib.loads(Path(path).read_text())
        rules = tuple(_rule(row) for row in content.pop("rules", []))
        scenario = Scenario(
            step_s=float(content.pop("step_ms", 1.0)) / 1000,
            context_tokens=int(content.pop("context_tokens", 8192)),
            embedding_dimensions=int(content.pop("embedding_dimensions", 0)),
            embeds_base64=bool(content.pop("embeds_base64", True)),
            directives=str(content.pop("directives", "")),
            rules=rules,
        )
        if content:
            raise ValueError(f"{', '.join(content)}: no such setting")
        if scenario.step_s < 0 or scenario.context_tokens < 16:
            raise ValueError("step_ms must not be negative and context_tokens at least 16")
        if scenario.embedding_dimensions < 0:
            raise ValueError("embedding_dimensions must not be negative")
        for text in (scenario.directives, *(rule.directives for rule in rules)):
            parse_directives(text)
    except (OSError, ValueError, TypeError, re.error, InvalidRequest) as error:
        raise ConfigError(f"ENGINE_SCENARIO (--scenario) is {path!r}: {error}") from error
    return scenario


def _rule(row: dict[str, Any]) -> Rule:  # as TOML gives it; checked here
    row = dict(row)
    rule = Rule(
        when=re.compile(str(row.pop("when", ""))),
        tenant=row.pop("tenant", None),
        share=float(row.pop("share", 1.0)),
        directives=str(row.pop("directives")) if "directives" in row else "",
    )
    if row:
        raise ValueError(f"a rule has no {', '.join(row)}")
    if not rule.directives or not 0 <= rule.share <= 1:
        raise ValueError("a rule needs directives, and its share is between 0 and 1")
    return rule
