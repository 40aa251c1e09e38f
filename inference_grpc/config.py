"""EngineConfig: how one engine process runs. Read from flags, then the environment; an odd value stops the start."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

EngineKind = Literal["torch", "scripted"]
DEVICES = ("cpu", "cuda")
ADMISSIONS = ("grow", "whole")
KV_CACHES = ("auto", "float32", "fp8", "staged")
# Each needs a state slot of its own, and few of more than that prove right.
MOST_DRAFT_TOKENS = 8
ENGINE_KINDS: tuple[EngineKind, ...] = ("torch", "scripted")


class ConfigError(Exception):
    """A flag or variable has a value that the engine cannot run with; the text names both and says what is allowed."""


def _about(variable: str, meaning: str, *, minimum: int = 0) -> dict[str, object]:
    return {"variable": variable, "meaning": meaning, "minimum": minimum}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every field is the flag `--field-name` and the variable in its metadata; the flag wins."""

    kind: EngineKind = field(
        default="torch",
        metadata=_about("ENGINE_KIND", "torch: the real engine; scripted: exact answers and faults to order."),
    )
    model: str = field(
        default="smollm2-135m-instruct",
        metadata=_about(
            "ENGINE_MODEL", "Name of an embedded model, or the path of a GGUF file or a Hugging Face folder."
        ),
    )
    precision: str = field(
        default="auto",
        metadata=_about(
            "ENGINE_PRECISION", "auto (as the model is stored), bf16, fp8, nvfp4, or the path of a recipe (TOML)."
        ),
    )
    device: str = field(
        default="cpu",
        metadata=_about(
            "ENGINE_DEVICE", "cpu, or cuda: the NVIDIA GPU of this machine (python -m kernels.gates first)."
        ),
    )
    batch_invariant: int = field(
        default=0,
        metadata=_about("ENGINE_BATCH_INVARIANT", "1: on cuda a text is the same alone and in any batch; slower."),
    )
    listen: str = field(
        default="127.0.0.1:50051",
        metadata=_about("ENGINE_LISTEN", "host:port of the gRPC server; port 0 picks a free one."),
    )
    journal_dir: Path = field(
        default=Path("var/engine"),
        metadata=_about("ENGINE_JOURNAL_DIR", "Folder of the receipt journal; one per engine."),
    )
    packed_dir: str = field(
        default="",
        metadata=_about(
            "ENGINE_PACKED_DIR", "Folder for weights kept as they are used; empty = packed/ in the journal's folder."
        ),
    )
    packed_mib: int = field(
        default=4096,
        metadata=_about("ENGINE_PACKED_MIB", "MiB of that folder, for faster starts on a CPU; 0 = keep none."),
    )
    metrics_port: int = field(
        default=0,
        metadata=_about("ENGINE_METRICS_PORT", "Port of the Prometheus endpoint, on the host of listen; 0 = off."),
    )
    max_sequences: int = field(
        default=16, metadata=_about("ENGINE_MAX_SEQUENCES", "Sequences that run in one step.", minimum=1)
    )
    page_tokens: int = field(
        default=16, metadata=_about("ENGINE_PAGE_TOKENS", "Tokens of one KV-cache page.", minimum=1)
    )
    pages: int = field(
        default=1024,
        metadata=_about("ENGINE_PAGES", "KV-cache pages; times page_tokens, the tokens that fit.", minimum=2),
    )
    kv_cache: str = field(
        default="auto",
        metadata=_about(
            "ENGINE_KV_CACHE",
            "Keys and values: auto (as ENGINE_PRECISION says), float32 (bfloat16 on cuda), fp8, or staged: pages long "
            "past in three bits, the others in FP8.",
        ),
    )
    kv_anchor_pages: int = field(
        default=4, metadata=_about("ENGINE_KV_ANCHOR_PAGES", "First pages of a text that a staged cache keeps in FP8.")
    )
    kv_recent_pages: int = field(
        default=32,
        metadata=_about("ENGINE_KV_RECENT_PAGES", "Last pages of a text that a staged cache keeps in FP8.", minimum=2),
    )
    checkpoint_mib: int = field(
        default=256,
        metadata=_about(
            "ENGINE_CHECKPOINT_MIB",
            "MiB for the states of prefixes; used by models with recurrent state, least recently used ones go.",
        ),
    )
    swap_mib: int = field(
        default=0,
        metadata=_about(
            "ENGINE_SWAP_MIB",
            "MiB of host memory for what preempted sequences computed and states that gave way; 0 = compute again. "
            "It pays on a GPU; on a CPU more pages do the same.",
        ),
    )
    prefill_tokens: int = field(
        default=256,
        metadata=_about("ENGINE_PREFILL_TOKENS", "Prompt tokens that one step computes at most.", minimum=1),
    )
    admission: str = field(
        default="grow",
        metadata=_about(
            "ENGINE_ADMISSION",
            "grow: run what fits now and preempt when pages run out; whole: run only what fits to its last token.",
        ),
    )
    draft_tokens: int = field(
        default=0,
        metadata=_about(
            "ENGINE_DRAFT_TOKENS",
            "Draft tokens that a step verifies for each sequence, by the model's draft layer, or by what "
            "followed the same words before; 0 = none. On only where the start shows that texts stay the same.",
        ),
    )
    queue_limit: int = field(
        default=256, metadata=_about("ENGINE_QUEUE_LIMIT", "Requests that may wait; one more is refused.", minimum=1)
    )
    threads: int = field(default=1, metadata=_about("ENGINE_THREADS", "CPU threads of the forward pass.", minimum=1))
    drain_s: int = field(
        default=20, metadata=_about("ENGINE_DRAIN_S", "Seconds that running requests get to finish after SIGTERM.")
    )
    scenario: str = field(
        default="",
        metadata=_about("ENGINE_SCENARIO", "Scripted engine: path of a scenario file (TOML); empty = its defaults."),
    )

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0]

    @property
    def packed_folder(self) -> Path:
        return Path(self.packed_dir) if self.packed_dir else self.journal_dir / "packed"


def settings() -> list[Field[Any]]:
    """Every setting, for the help text and the check of `.env.example`; `metadata["variable"]` is its name there."""
    return list(fields(EngineConfig))


def read_config(arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> EngineConfig:
    """The configuration of this process. A bad value raises `ConfigError`, an unknown flag or --help SystemExit."""
    environment = os.environ if environment is None else environment
    parser = argparse.ArgumentParser(
        prog="python -m inference_grpc.server",
        description="Serve one model over gRPC. A flag wins over its environment variable.",
    )
    for setting in settings():
        variable, meaning = setting.metadata["variable"], setting.metadata["meaning"]
        names = ["--engine"] if setting.name == "kind" else [_flag(setting)]
        if setting.name == "journal_dir":
            names = ["--journal", *names]
        shown = f"{meaning} [{variable}, default {setting.default!s}]"
        parser.add_argument(*names, dest=setting.name, metavar="VALUE", help=shown.replace("%", "%%"))
    parser.add_argument("--tiny-random", metavar="FAMILY", help="a tiny model with random weights: qwen3_5 or llama")
    flags = vars(parser.parse_args(list(arguments)))
    if flags["tiny_random"] is not None:
        if flags["model"] is not None:
            raise ConfigError("--tiny-random makes a model of its own; leave --model out.")
        flags["model"] = f"tiny-random:{flags['tiny_random']}"

    values: dict[str, Any] = {}
    for setting in settings():
        text = flags[setting.name]
        if text is None:
            text = environment.get(setting.metadata["variable"])
        if text is not None:
            values[setting.name] = _parse(setting, text.strip())
    config = EngineConfig(**values)
    _check(config)
    return config


def _flag(setting: Field[Any]) -> str:
    return "--" + setting.name.replace("_", "-")


def _refuse(setting_name: str, text: object, why: str) -> ConfigError:
    setting = next(setting for setting in settings() if setting.name == setting_name)
    flag = "--engine" if setting_name == "kind" else _flag(setting)
    return ConfigError(f"{setting.metadata['variable']} ({flag}) is {str(text)!r}: {why}")


def _parse(setting: Field[Any], text: str) -> object:
    if isinstance(setting.default, Path):
        if not text:
            raise _refuse(setting.name, text, "name a folder.")
        return Path(text)
    if isinstance(setting.default, str):
        return text
    try:
        number = int(text)
    except ValueError:
        raise _refuse(setting.name, text, "not a whole number.") from None
    minimum = cast(int, setting.metadata["minimum"])
    if number < minimum:
        raise _refuse(setting.name, text, f"the least is {minimum}.")
    return number


def _check(config: EngineConfig) -> None:
    if config.kind not in ENGINE_KINDS:
        raise _refuse("kind", config.kind, f"use one of {', '.join(ENGINE_KINDS)}.")
    if config.device not in DEVICES:
        raise _refuse("device", config.device, f"use one of {', '.join(DEVICES)}.")
    if config.admission not in ADMISSIONS:
        raise _refuse("admission", config.admission, f"use one of {', '.join(ADMISSIONS)}.")
    if config.kv_cache not in KV_CACHES:
        raise _refuse("kv_cache", config.kv_cache, f"use one of {', '.join(KV_CACHES)}.")
    if config.batch_invariant > 1:
        raise _refuse("batch_invariant", config.batch_invariant, "use 0 or 1.")
    if config.draft_tokens > MOST_DRAFT_TOKENS:
        raise _refuse("draft_tokens", config.draft_tokens, f"at most {MOST_DRAFT_TOKENS} are checked in one step.")
    if not config.model:
        raise _refuse("model", config.model, "name a model or the path of a GGUF file.")
    host, colon, port = config.listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise _refuse("listen", config.listen, "use host:port, for example 127.0.0.1:50051.")
    if config.metrics_port > 65535:
        raise _refuse("metrics_port", config.metrics_port, "a port is at most 65535.")
    if config.scenario and config.kind != "scripted":
        raise _refuse("scenario", config.scenario, "only the scripted engine takes a scenario.")
    if config.scenario and not Path(config.scenario).is_file():
        raise _refuse("scenario", config.scenario, "no such file.")
