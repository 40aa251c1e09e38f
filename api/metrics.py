"""Prometheus metrics of the gateway: counted per request, never per token.

To an engine the gateway is the client: what it sees of a call is named as OpenTelemetry's GenAI conventions name a
client's view, and the engine's own `gen_ai_server_*` stand beside it. What those do not know is named after vLLM.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

# The bounds that the conventions give.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68)
_FIRST_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings"}
_MODEL = "gen_ai_request_model"

REFUSALS = Counter("gateway_refusals_total", "Calls answered with an error before the first byte.", ["code"])
LIMITS_EXCEEDED = Counter(
    "gateway_limits_exceeded_total", "Calls that a soft or shadow limit let through.", ["mode", "kind"]
)
DURATION = Histogram(
    "gen_ai_client_operation_duration_seconds",
    "From the arrival of a call to its end, one observation for each usage record.",
    [_MODEL, "gen_ai_operation_name", "protocol", "status"],
    buckets=_SECONDS,
)
FIRST_CHUNK = Histogram(
    "gen_ai_client_operation_time_to_first_chunk_seconds",
    "From the arrival of a streamed call to its first token.",
    [_MODEL],
    buckets=_FIRST_SECONDS,
)
PER_CHUNK = Histogram(
    "gen_ai_client_operation_time_per_output_chunk_seconds",
    "Mean time between the tokens of a streamed call.",
    [_MODEL],
    buckets=_TOKEN_SECONDS,
)
TOKENS = Histogram(
    "gen_ai_client_token_usage", "Tokens of a call by kind.", [_MODEL, "gen_ai_token_type"], buckets=_TOKENS
)
RUNNING = Gauge("gateway_num_requests_running", "Requests at a deployment now.", ["model_name"])
STREAMS = Gauge("gateway_num_streams_running", "Of these, the ones that stream their answer.", ["model_name"])
RETRIES = Counter(
    "gateway_retries_total", "Attempts at another deployment before the first token.", ["model_name", "code"]
)


def record_call(
    model: str,
    protocol: str,
    status: str,
    *,
    duration_s: float,
    tokens: dict[str, int],
    first_token_s: float | None,
    per_token_s: float | None,
) -> None:
    """A finished record. The last two are None where the call did not stream."""
    DURATION.labels(model, _OPERATIONS.get(protocol, "chat"), protocol, status).observe(duration_s)
    for kind, count in tokens.items():
        TOKENS.labels(model, kind).observe(count)
    if first_token_s is not None:
        FIRST_CHUNK.labels(model).observe(first_token_s)
    if per_token_s is not None:
        PER_CHUNK.labels(model).observe(per_token_s)
