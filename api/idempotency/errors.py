from __future__ import annotations


class IdempotencyConflict(Exception):
    """The key cannot be used for this call: always a 409."""


class KeyReused(IdempotencyConflict):
    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used for a call with another path or body; send a new key for a new call."
        )


class CallInProgress(IdempotencyConflict):
    def __init__(self) -> None:
        super().__init__("The first call with this Idempotency-Key is still running; repeat it when it has ended.")


class AnswerNotKept(IdempotencyConflict):
    def __init__(self) -> None:
        super().__init__(
            "The first call with this Idempotency-Key has ended, but its answer was too long to be kept; "
            "it is not run twice. Send a new key to run it again."
        )
