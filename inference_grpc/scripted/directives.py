"""Orders in a prompt: what to answer, how fast, and what is to go wrong. README.md lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from inference_grpc.errors import BY_CODE, InvalidRequest
from inference_grpc.scripted.faults import ReceiptFault

# A word with a value that holds no blank.
_WORD = re.compile(r"(?<!\S)(FAIL|REFUSE|STALL|EXIT|BREAK|PACE|TTFT|TOKENS|CACHED|RECEIPT):(\S+)")
# A value up to the next of its kind or the end of the line; orders of the other kinds are taken out of it.
_LINE = re.compile(r"(?<!\S)(RUN|THINK|SAY):[ \t]*(.*?)(?=(?<!\S)(?:RUN|THINK|SAY):|\n|$)")
_FLAG = re.compile(r"(?<!\S)IGNORE_CANCEL(?!\S)")

# HTTP statuses stand for the engine error that a gateway would answer with them.
_CODE_OF_STATUS = {
    "400": "invalid_request",
    "404": "model_not_served",
    "408": "deadline_exceeded",
    "429": "engine_overloaded",
    "500": "engine_error",
    "502": "device_fault",
    "503": "engine_unavailable",
    "504": "deadline_exceeded",
}


@dataclass(slots=True)
class Directives:
    run: str | None = None  # call the shell tool with this command
    think: str | None = None  # reason first; "" = some words
    say: str | None = None  # the exact answer
    tokens: int | None = None  # so many words as the answer
    cached_tokens: int = 0
    tokens_per_s: float | None = None
    first_token_s: float = 0.0
    fail_code: str | None = None
    fail_at: int | None = None  # after so many tokens; None = before the request starts
    refuse_code: str | None = None
    stall_at: int | None = None
    exit_at: int | None = None
    break_at: int | None = None
    receipt: ReceiptFault | None = None
    ignores_cancel: bool = False


def parse_directives(text: str) -> Directives:
    """A later order overrides an earlier one of its name. Raises `InvalidRequest` for a value that makes no sense."""
    result = Directives()
    for name, value in _WORD.findall(text):
        try:
            _apply(result, name, value)
        except ValueError as error:
            raise InvalidRequest(f"Directive {name}:{value} is not understood: {error}", param="prompt") from None
    for name, value in _LINE.findall(_FLAG.sub("", _WORD.sub("", text))):
        setattr(result, name.lower(), value.strip())
    result.ignores_cancel = _FLAG.search(text) is not None
    return result


def _apply(result: Directives, name: str, value: str) -> None:
    match name:
        case "FAIL":
            code, at, count = value.partition("@")
            result.fail_code = _code(code)
            result.fail_at = _count(count) if at else None
        case "REFUSE":
            result.refuse_code = _code(value)
        case "STALL":
            result.stall_at = _count(value)
        case "EXIT":
            result.exit_at = _count(value)
        case "BREAK":
            result.break_at = _count(value)
        case "TOKENS":
            result.tokens = _count(value)
        case "CACHED":
            result.cached_tokens = _count(value)
        case "PACE":
            result.tokens_per_s = float(value)
            if not 0 < result.tokens_per_s <= 1e6:
                raise ValueError("tokens a second are above 0 and at most 1000000")
        case "TTFT":
            result.first_token_s = _count(value) / 1000
        case "RECEIPT":
            result.receipt = "drop" if value == "drop" else int(value)


def _code(value: str) -> str:
    code = _CODE_OF_STATUS.get(value, value)
    if code not in BY_CODE:
        raise ValueError(f"the codes are {', '.join(sorted(BY_CODE))}, or one of {', '.join(_CODE_OF_STATUS)}")
    return code


def _count(value: str) -> int:
    if not value.isdigit():
        raise ValueError("a whole number from 0 on is due")
    return int(value)
