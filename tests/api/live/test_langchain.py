"""LangChain against the real gateway: the tool round trip, plain and streamed, and an object, on all three APIs."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.api.live.service import MODEL, PATIENCE_S, Account


@tool
def add(a: int, b: int) -> int:
    """Add two integers"""
    return a + b


class Pair(BaseModel):
    a: int
    b: int


@pytest.fixture(params=["chat", "responses", "messages"])
def model(request: pytest.FixtureRequest, account: Account) -> BaseChatModel:
    common: dict[str, Any] = {"model": MODEL, "api_key": account.secret, "max_retries": 0, "timeout": PATIENCE_S}
    if request.param == "messages":
        return ChatAnthropic(base_url=account.web.url, max_tokens=128, **common)
    is_responses = request.param == "responses"
    return ChatOpenAI(base_url=f"{account.web.url}/v1", use_responses_api=is_responses, stream_usage=True, **common)


def test_a_tool_goes_round(model: BaseChatModel, account: Account) -> None:
    question = [HumanMessage("Use add on 2 and 3")]
    with_tools = model.bind_tools([add])
    asked = with_tools.invoke(question)
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 2, "b": 3})
    result = ToolMessage(f"It is {add.invoke(call['args'])}", tool_call_id=call["id"])
    answer = with_tools.invoke([*question, asked, result])
    assert "It is 5" in str(answer.text)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == account.records()[-1].prompt_tokens


def test_a_forced_call_is_assembled_from_a_stream(model: BaseChatModel) -> None:
    chunks = list(model.bind_tools([add], tool_choice="any").stream([HumanMessage("2 and 3")]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    (call,) = whole.tool_calls
    assert call["args"] == {"a": 2, "b": 3}
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] > 0


def test_an_answer_is_held_to_its_schema(model: BaseChatModel) -> None:
    answer = model.with_structured_output(Pair).invoke("3 and 4")
    assert isinstance(answer, Pair)
    assert (answer.a, answer.b) == (3, 4)
