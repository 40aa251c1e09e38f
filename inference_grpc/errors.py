"""Engine errors with a stable code, shared by client and server. server/servicer.py maps each to a gRPC status."""

from __future__ import annotations


class EngineError(Exception):
    """Base. `fields` name what was wrong and the limit; they travel as strings."""

    code = "engine_error"

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = {name: str(value) for name, value in fields.items()}


class InvalidRequest(EngineError):
    """A field is out of range or contradicts another; `fields["param"]` names it."""

    code = "invalid_request"


class PromptTooLong(EngineError):
    """fields: prompt_tokens, max_tokens, context_tokens."""

    code = "context_length_exceeded"


class UnsupportedSchema(EngineError):
    """A JSON Schema keyword, regex or grammar that decoding cannot enforce; `fields["keyword"]` names it."""

    code = "unsupported_schema"


class ModelNotServed(EngineError):
    code = "model_not_served"


class QueueFull(EngineError):
    """fields: waiting, limit."""

    code = "engine_overloaded"


class DeadlineExceeded(EngineError):
    code = "deadline_exceeded"


class EngineShutdown(EngineError):
    code = "engine_shutdown"


class EngineUnavailable(EngineError):
    """The client cannot reach the engine, or the session broke; nothing more will come."""

    code = "engine_unavailable"


class DeviceFault(EngineError):
    code = "device_fault"


class SlowReader(EngineError):
    """The caller did not read its stream and its buffer is full; the request was cancelled."""

    code = "slow_reader"


BY_CODE: dict[str, type[EngineError]] = {
    cls.code: cls
    for cls in (
        EngineError, InvalidRequest, PromptTooLong, UnsupportedSchema, ModelNotServed, QueueFull,
        DeadlineExceeded, EngineShutdown, EngineUnavailable, DeviceFault, SlowReader,
    )
}  # fmt: skip
