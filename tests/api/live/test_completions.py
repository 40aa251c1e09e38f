"""Legacy Completions with OpenAI's own client: one record a prompt, one answer."""

from __future__ import annotations

import openai
import pytest

from tests.api.live.service import MODEL, Account


def test_each_prompt_has_its_record_and_the_answer_their_sum(account: Account) -> None:
    answer = account.client().completions.create(model=MODEL, prompt=["SAY: a b", "SAY: c"], n=2, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == ["a b", "a b", "c", "c"]
    records = account.records()
    assert len(records) == 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(record.prompt_tokens for record in records)
    assert answer.usage.completion_tokens == sum(record.completion_tokens for record in records)
    account.assert_books_agree()


def test_stream_ends_with_usage_when_asked(each_account: Account) -> None:
    stream = each_account.client().completions.create(
        model=MODEL, prompt="SAY: one two", stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "one two"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    each_account.assert_books_agree()


def test_suffix_is_refused_by_name(account: Account) -> None:
    with pytest.raises(openai.BadRequestError, match="suffix") as refusal:
        account.client().completions.create(model=MODEL, prompt="x", suffix="y")
    assert refusal.value.param == "suffix"
    assert account.records() == []
