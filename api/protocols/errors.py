"""What a dialect raises for a body that it cannot serve. The consumer answers it in that dialect's shape."""

from __future__ import annotations


class BadRequest(Exception):
    """The body is wrong: always a 400.

    `param` is the path of the field in the caller's own words (`messages[2].content`), or None when the body as a whole
    is wrong. `code` is one of OpenAI's (`invalid_type`, `missing_required_parameter`, …) or None.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def missing(param: str) -> BadRequest:
    return BadRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def wrong_type(param: str, expected: str, got: str) -> BadRequest:
    return BadRequest(f"Invalid type for '{param}': expected {expected}, but got {got} instead.", param, "invalid_type")


def unsupported(param: str, what: str, remedy: str = "") -> BadRequest:
    return BadRequest(f"{what} {remedy}".strip(), param, "unsupported_value")


def out_of_range(param: str, value: object, limits: str) -> BadRequest:
    return BadRequest(f"Invalid '{param}': {value} is not {limits}.", param, "invalid_value")
