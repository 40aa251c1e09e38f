"""Prometheus metrics of the gateway: counted per request, never per token."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)

REQUESTS = Counter(
    "gateway_requests_total", "Usage records finished, by how they ended.", ["model", "protocol", "status"]
)
REFUSALS = Counter("gateway_refusals_total", "Calls answered with an error before the first byte.", ["code"])
TOKENS = Counter("gateway_tokens_total", "Tokens on finished records.", ["model", "kind"])
TTFT = Histogram(
    "gateway_ttft_seconds", "From the arrival of the call to its first token.", ["model"], buckets=_SECONDS
)
ITL = Histogram("gateway_itl_seconds", "Mean time between the tokens of a request.", ["model"], buckets=_TOKEN_SECONDS)
DURATION = Histogram("gateway_request_seconds", "From the arrival of the call to its end.", ["model"], buckets=_SECONDS)
RUNNING = Gauge("gateway_running_requests", "Requests at a deployment now.", ["model"])
RETRIES = Counter("gateway_retries_total", "Attempts at another deployment before the first token.", ["model", "code"])
