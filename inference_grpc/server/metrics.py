"""Prometheus metrics of one engine: latencies as OpenTelemetry's GenAI conventions name them, the rest after vLLM.

The hot path adds to plain lists; Prometheus' own objects are made when a scrape asks. A labelled histogram of
prometheus-client costs 6 us per observation, one of these a tenth.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_grpc.core.backend import BackendInfo
from inference_grpc.events import Usage

# The bounds of OpenTelemetry's gen_ai.server.* metrics.
FIRST_TOKEN_BOUNDS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TOKEN_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
REQUEST_BOUNDS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Histogram:
    """Counts per bound; cheap enough for once a token."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self._name, self._meaning = name, meaning
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self, labels: dict[str, str]) -> Metric:
        buckets, total = [], 0
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family = HistogramMetricFamily(self._name, self._meaning, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class EngineMetrics(Collector):
    """What the server counts, and what the backend says of itself at the time of a scrape."""

    def __init__(self, read_backend: Callable[[], BackendInfo]) -> None:
        self._read_backend = read_backend
        self.time_to_first_token = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the submit to the first token, per request.",
            FIRST_TOKEN_BOUNDS_S,
        )
        self.inter_token_latency = Histogram(
            "engine_inter_token_latency_seconds", "Between two tokens of a request.", TOKEN_BOUNDS_S
        )
        self.time_per_output_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time of a token after the first, per request.",
            TOKEN_BOUNDS_S,
        )
        self.request_duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From the submit to the last token, per request.",
            REQUEST_BOUNDS_S,
        )
        self.outcomes: Counter[str] = Counter()  # completed, cancelled, refused, or the code of a failure
        self.tokens = Usage()
        self.steps_sent = 0
        self.sessions = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def count_usage(self, usage: Usage) -> None:
        self.tokens.prompt_tokens += usage.prompt_tokens
        self.tokens.cached_tokens += usage.cached_tokens
        self.tokens.completion_tokens += usage.completion_tokens
        self.tokens.reasoning_tokens += usage.reasoning_tokens

    def collect(self) -> Iterator[Metric]:
        info = self._read_backend()
        labels = {"model_name": info.model}
        for histogram in (
            self.time_to_first_token,
            self.inter_token_latency,
            self.time_per_output_token,
            self.request_duration,
        ):
            yield histogram.collect(labels)

        # Of a staged cache whichever kind is shorter: it is what newcomers wait for.
        used = (info.pages_total - info.pages_free) / max(1, info.pages_total)
        stale_used = (info.three_bit_pages_total - info.three_bit_pages_free) / max(1, info.three_bit_pages_total)
        gauges = {
            "engine_num_requests_running": ("Sequences that run.", info.running),
            "engine_num_requests_waiting": ("Requests that wait for a place.", info.waiting),
            "engine_kv_cache_usage_perc": (
                "Pages in use, 0 to 1; of a staged cache whichever kind is shorter.",
                max(used, stale_used),
            ),
            "engine_kv_cache_pages": ("Pages of the KV cache; of a staged one, in FP8.", info.pages_total),
            "engine_kv_cache_pages_free": ("Pages that are free.", info.pages_free),
            "engine_kv_cache_three_bit_pages": (
                "Pages of a staged KV cache in three bits.",
                info.three_bit_pages_total,
            ),
            "engine_kv_cache_three_bit_pages_free": ("Of these, free.", info.three_bit_pages_free),
            "engine_kv_cache_pages_held": ("Pages that sequences hold; of a staged cache, in FP8.", info.pages_held),
            "engine_kv_cache_three_bit_pages_held": ("The same in three bits.", info.three_bit_pages_held),
            "engine_sessions": ("Gateway sessions that are open.", self.sessions),
        }
        for name, (meaning, value) in gauges.items():
            gauge = GaugeMetricFamily(name, meaning, labels=list(labels))
            gauge.add_metric(list(labels.values()), value)
            yield gauge

        counters = {
            "engine_prompt_tokens": ("Prompt tokens of ended requests.", self.tokens.prompt_tokens),
            "engine_generation_tokens": ("Tokens that were generated.", self.tokens.completion_tokens),
            "engine_reasoning_tokens": ("Reasoning tokens among them.", self.tokens.reasoning_tokens),
            "engine_cached_prompt_tokens": (
                "Prompt tokens of ended requests that were cached.",
                self.tokens.cached_tokens,
            ),
            "engine_prefix_cache_queries": ("Prompt tokens looked for in the prefix cache.", info.prompt_tokens),
            "engine_prefix_cache_hits": ("Of these, the ones that were there.", info.prefix_hit_tokens),
            "engine_steps": ("Steps of the engine.", info.steps),
            "engine_session_messages": ("Messages that were sent to gateways.", self.steps_sent),
            # In vLLM's words a draft is all that is drafted for a sequence in a step; each has a first token.
            "engine_spec_decode_num_drafts": ("Drafts that were checked.", sum(info.drafted_per_position[:1])),
            "engine_spec_decode_num_draft_tokens": ("Tokens of drafts.", info.drafted_tokens),
            "engine_spec_decode_num_accepted_tokens": ("Of these, the ones that were right.", info.accepted_tokens),
        }
        for name, (meaning, value) in counters.items():
            counter = CounterMetricFamily(name, meaning, labels=list(labels))
            counter.add_metric(list(labels.values()), value)
            yield counter

        by_position = {
            "engine_spec_decode_num_draft_tokens_per_pos": ("Tokens of drafts by position.", info.drafted_per_position),
            "engine_spec_decode_num_accepted_tokens_per_pos": (
                "Of these, the ones that were right.",
                info.accepted_per_position,
            ),
        }
        for name, (meaning, counts) in by_position.items():
            counter = CounterMetricFamily(name, meaning, labels=[*labels, "position"])
            for position, count in enumerate(counts):
                counter.add_metric([*labels.values(), str(position)], count)
            yield counter

        saturated = CounterMetricFamily(
            "engine_fp8_saturated_values",
            "Activations, keys and values cut to the range of FP8; on a GPU keys and values of prompts.",
            labels=[*labels, "kind"],
        )
        for kind, count in info.saturated.items():
            saturated.add_metric([*labels.values(), kind], count)
        yield saturated

        requests = CounterMetricFamily("engine_requests", "Requests by outcome.", labels=[*labels, "outcome"])
        for outcome, count in sorted(self.outcomes.items()):
            requests.add_metric([*labels.values(), outcome], count)
        yield requests
