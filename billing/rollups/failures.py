"""Classes of failures, for sums: a record's error code says exactly what went wrong, its class whose fault it was."""

from __future__ import annotations

# Every other code is the engine's fault.
CLASSES: dict[str, tuple[str, ...]] = {
    "request": ("invalid_request", "context_length_exceeded", "unsupported_schema", "slow_reader"),
    "capacity": ("engine_overloaded",),
    "unavailable": (
        "engine_unavailable",
        "engine_shutdown",
        "model_not_served",
        "shutting_down",
        "store_unavailable",
        "lost",
    ),
    "timeout": ("deadline_exceeded",),
}
NAMES = (*CLASSES, "engine")


def class_sql(error_code: str) -> str:
    """The class of an SQL expression that is an error code."""
    cases = " ".join(
        f"WHEN {error_code} IN ({', '.join(repr(code) for code in codes)}) THEN '{name}'"
        for name, codes in CLASSES.items()
    )
    return f"CASE {cases} ELSE 'engine' END"
