from __future__ import annotations

import pytest

from api.protocols import sealing
from api.protocols.json_repair import parse_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": "x', {"a": "x"}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1, 2]}}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, ', {"a": 1}),
        ('{"a":', {}),
        ("{", {}),
        ('{"a": "brace } in [ text", "b": "', {"a": "brace } in [ text", "b": ""}),
        ("[1]", None),
        ("no json", None),
        ("}", None),
    ],
)
def test_arguments_cut_short_are_closed(text: str, value: object) -> None:
    assert parse_object(text) == value


def test_signature_is_of_the_text() -> None:
    assert sealing.sign("a") == sealing.sign("a")
    assert sealing.sign("a") != sealing.sign("b")


def test_sealed_text_opens_only_for_its_kind() -> None:
    token = sealing.seal("geheim", "reasoning")
    assert "geheim" not in token
    assert sealing.unseal(token, "reasoning") == "geheim"
    assert sealing.unseal(token, "compaction") is None


@pytest.mark.parametrize("token", ["", "x", "äöü", "A" * 80])
def test_foreign_tokens_do_not_open(token: str) -> None:
    assert sealing.unseal(token, "reasoning") is None


def test_unconfigured_keys_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_keys", {})
    with pytest.raises(RuntimeError, match="configure"):
        sealing.sign("a")
