"""The engines that are compared, behind one face: run some prompts at once, say how long it took."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from inference_grpc.config import EngineConfig
from inference_grpc.core.backend import StepRows
from inference_grpc.core.request import Request, SamplingParams
from inference_grpc.engine import load_backend
from inference_grpc.events import Failed, Finished


@dataclass(frozen=True, slots=True)
class Timing:
    wall_s: float
    cpu_s: float  # of the whole process


class Contestant(Protocol):
    name: str
    precision: str

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        """Generate `tokens` tokens for each prompt, greedily, all prompts at once."""

    def close(self) -> None: ...


class OurEngine:
    name = "this engine"
    precision = "float16 weights, float32 activations"

    def __init__(self, model: str) -> None:
        self._backend = load_backend(EngineConfig(model=model))
        self._changed = threading.Condition()
        self._open: set[int] = set()
        self._backend.start(self._on_step)

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        self._open = set(range(len(prompts)))
        started, cpu = time.perf_counter(), time.process_time()
        for key, prompt in enumerate(prompts):
            request = Request(str(key), prompt, SamplingParams(temperature=0.0), max_tokens=tokens, ignore_eos=True)
            self._backend.submit(key, self._backend.prepare(request))
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
        ended = time.perf_counter()
        return Timing(ended - started, time.process_time() - cpu)

    def close(self) -> None:
        self._backend.close()

    def _on_step(self, rows: StepRows) -> None:
        with self._changed:
            for key, event in rows:
                if isinstance(event, Failed):
                    raise SystemExit(f"the engine failed: {event.message}")
                if isinstance(event, Finished):
                    self._open.discard(key)
            self._changed.notify_all()


class Transformers:
    name = "transformers generate()"
    precision = "float32"

    def __init__(self, path: Path) -> None:
        from benchmarks.engine.transformers_model import load_transformers

        self._model = load_transformers(path)

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        started, cpu = time.perf_counter(), time.process_time()
        self._generate(prompts, tokens)
        return Timing(time.perf_counter() - started, time.process_time() - cpu)

    def _generate(self, prompts: list[list[int]], tokens: int) -> None:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )

    def close(self) -> None: ...


class LlamaCpp:
    name = "llama.cpp (xllamacpp)"
    precision = "Q4_1 weights, int8 activations"

    def __init__(self, path: Path, concurrency: int) -> None:
        import xllamacpp

        parameters: Any = xllamacpp.CommonParams()  # the package has no types
        parameters.model.path = str(path)
        parameters.n_ctx = 1024 * concurrency
        parameters.n_parallel = concurrency
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = torch.get_num_threads()
        parameters.verbosity = -1
        self._server = xllamacpp.Server(parameters)

    def run(self, prompts: list[list[int]], tokens: int) -> Timing:
        def complete(prompt: list[int]) -> None:
            request = {
                "prompt": prompt,
                "n_predict": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
            timings: dict[str, float] = self._server.handle_completions(request)["timings"]
            if timings["predicted_n"] != tokens:
                raise SystemExit(f"llama.cpp made {timings['predicted_n']} tokens instead of {tokens}")

        started, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(len(prompts)) as callers:
            list(callers.map(complete, prompts))
        return Timing(time.perf_counter() - started, time.process_time() - cpu)

    def close(self) -> None: ...
