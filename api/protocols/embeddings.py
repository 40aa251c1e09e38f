"""OpenAI's Embeddings: POST /v1/embeddings, for models with a deployment that embeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import msgspec
import orjson
from msgspec import Struct

from api.protocols.decoding import Count, TokenId, check_one_of, decode, one_of
from api.protocols.dialect import ErrorStyle
from api.protocols.errors import BadRequest
from api.protocols.openai import KEEPALIVE, error_body, error_frame
from api.protocols.request import Embedding, GenerationRequest
from inference_grpc.events import ChoiceFinished, Delta, Finished, Started, TextDelta, Usage

__all__ = ["ERROR_STYLE", "NAME", "PATHS", "Parsed", "Writer", "error_body", "make_writer", "parse"]

NAME = "embeddings"
PATHS = frozenset({"/v1/embeddings"})
ERROR_STYLE: ErrorStyle = "openai"

MAX_INPUTS = 2048


class Body(Struct, kw_only=True):
    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Annotated[str, one_of("float", "base64")] | None = None
    dimensions: Count | None = None
    user: str | None = None


_BODY = msgspec.json.Decoder(Body)


@dataclass(slots=True)
class Parsed:
    request: GenerationRequest

    @property
    def requests(self) -> list[GenerationRequest]:
        return [self.request]


def parse(body: bytes) -> Parsed:
    wire = decode(_BODY, body)
    encoding_format = wire.encoding_format or "float"
    check_one_of(encoding_format, ("float", "base64"), "encoding_format")
    embedding = Embedding(_inputs(wire.input), encoding_format, wire.dimensions)
    # No tokens are made, so none are held.
    return Parsed(GenerationRequest(wire.model, stream=False, embedding=embedding, max_tokens=0, end_user=wire.user))


def _inputs(given: str | list[str | int | list[int]]) -> str | list[str] | list[int] | list[list[int]]:
    if isinstance(given, str):
        if not given:
            raise BadRequest("'input' must not be empty.", "input", "invalid_value")
        return given
    if not given or any(not part and part != 0 for part in given):
        raise BadRequest("'input' must not hold an empty text or list.", "input", "invalid_value")
    if len(given) > MAX_INPUTS and not isinstance(given[0], int):
        raise BadRequest(
            f"'input' holds {len(given)} texts; at most {MAX_INPUTS} go in one call.", "input", "invalid_value"
        )
    texts = [part for part in given if isinstance(part, str)]
    ids = [part for part in given if isinstance(part, int)]
    lists = [part for part in given if isinstance(part, list)]
    for kind in (texts, ids, lists):
        if len(kind) == len(given):
            return kind
    raise BadRequest("'input' mixes texts with token ids.", "input", "invalid_type")


class Writer:
    def __init__(self, model: str) -> None:
        self._model = model
        self._data: list[str] = []
        self._usage = Usage()

    def start(self, event: Started) -> bytes:
        return b""

    def feed(self, event: Delta | ChoiceFinished | Finished) -> bytes:
        if isinstance(event, TextDelta):
            self._data.append(event.text)
        elif isinstance(event, Finished):
            self._usage = event.usage
        return b""

    def fail(self, code: str, message: str) -> bytes:
        return error_frame(code, message)

    def keepalive(self) -> bytes:
        return KEEPALIVE

    def result(self) -> bytes:
        tokens = self._usage.prompt_tokens
        return orjson.dumps(
            {
                "object": "list",
                "data": orjson.Fragment("".join(self._data)),
                "model": self._model,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )


def make_writer(parsed: Parsed, *, request_id: UUID, model: str, created: int) -> Writer:
    return Writer(model)
