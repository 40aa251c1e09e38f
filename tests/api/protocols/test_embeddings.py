from __future__ import annotations

from typing import Any

import orjson
import pytest

from api.protocols import embeddings
from api.protocols.errors import BadRequest


def parsed(**fields: Any) -> embeddings.Parsed:
    return embeddings.parse(orjson.dumps({"model": "m", "input": "x", **fields}))


@pytest.mark.parametrize("given", ["a", ["a", "b"], [1, 0, 3], [[1], [2, 3]]])
def test_input_forms(given: Any) -> None:
    embedding = parsed(input=given, encoding_format="base64", dimensions=8).request.embedding
    assert embedding is not None
    assert (embedding.inputs, embedding.encoding_format, embedding.dimensions) == (given, "base64", 8)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": {}}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
    ],
)
def test_refusals(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parsed(**fields)
    assert refusal.value.param == param
