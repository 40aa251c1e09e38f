"""Vectors of the scripted engine: of length 1, the same for the same input, unrelated for others."""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from collections.abc import Iterator
from typing import Any

from inference_grpc.core.request import Embedding
from inference_grpc.errors import InvalidRequest


def embedding_objects(embedding: Embedding, dimensions: int) -> str:
    """The JSON list of OpenAI's embedding objects. `dimensions` is the model's own, and 0 where it has none.

    Raises `InvalidRequest`.
    """
    if not dimensions:
        raise InvalidRequest("This engine does not embed.", param="model")
    if embedding.dimensions > dimensions:
        raise InvalidRequest(
            f"dimensions is {embedding.dimensions}; the model has {dimensions}.", param="dimensions", limit=dimensions
        )
    return json.dumps(list(_objects(embedding, dimensions)))


def _objects(embedding: Embedding, dimensions: int) -> Iterator[dict[str, Any]]:
    for index, each in enumerate(embedding.inputs):
        randomness = random.Random(repr(each))  # a hash, not a secret
        vector = [randomness.gauss(0, 1) for _ in range(dimensions)][: embedding.dimensions or dimensions]
        length = math.hypot(*vector)
        vector = [value / length for value in vector]
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        yield {"object": "embedding", "index": index, "embedding": packed if embedding.base64 else vector}
