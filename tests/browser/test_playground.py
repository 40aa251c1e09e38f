"""The playground by clicking: tools, structured output, the same call as a program, a share inside the organization."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NARROW, WIDE, OpenWindow
from tests.browser.window import overflow
from tests.end_to_end.stack import MODEL, PATIENCE_S, Stack

pytestmark = pytest.mark.browser

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather now.", "parameters": SCHEMA}


def open_playground(page: Page, rows: dict[str, Any]) -> None:
    page.goto(f"/o/{rows['slug']}/playground")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most output, tokens").fill("24")


def ask(page: Page, question: str) -> None:
    answers = page.locator(".turn-facts").count()
    page.get_by_label("Message", exact=True).fill(question)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".turn-facts")).to_have_count(answers + 1)


def last_answer(page: Page) -> str:
    return page.locator(".turn-assistant .turn-text").last.inner_text()


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_an_answer_by_a_schema(width: int, open_window: OpenWindow, rows: dict[str, Any]) -> None:
    page = open_window("ben", width=width)
    open_playground(page, rows)
    page.get_by_label("Answer").select_option("json_schema")
    page.get_by_label("JSON schema").fill("{")
    ask_button = page.get_by_role("button", name="Send", exact=True)
    page.get_by_label("Message", exact=True).fill("The capital of France?")
    ask_button.click()
    expect(page.get_by_role("alert").filter(has_text="This is not JSON")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_value("The capital of France?")
    page.get_by_label("JSON schema").fill(json.dumps(SCHEMA))
    ask(page, "The capital of France?")
    assert json.loads(last_answer(page))["city"] in SCHEMA["properties"]["city"]["enum"]
    assert int(page.locator("#total-in").inner_text()) > 0
    assert re.fullmatch(r"\$0\.0\d+", page.locator("#total-cost").inner_text())
    assert overflow(page) <= 0


def test_tools_of_a_request_are_refused_at_the_field_and_their_results_go_on(
    open_window: OpenWindow, rows: dict[str, Any]
) -> None:
    """What the model says is not what is tested, so its answer is a fixed one."""
    page = open_window("ben")
    open_playground(page, rows)
    page.get_by_label("Tools").fill('{"name": "x"}')
    page.get_by_label("Message", exact=True).fill("Weather in Paris?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="Give a list")).to_be_visible()
    page.get_by_label("Tools").fill(json.dumps([TOOL]))
    sent: list[dict[str, Any]] = []
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    deltas = [{"role": "assistant", "tool_calls": [call]}, {"content": "Sunny."}]

    def answer(route: Any) -> None:
        sent.append(route.request.post_data_json)
        chunk = {"choices": [{"index": 0, "delta": deltas[len(sent) - 1]}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
        body = "".join(f"data: {json.dumps(each)}\n\n" for each in (chunk, usage)) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/portal-api/chat/completions", answer)
    ask(page, "Weather in Paris?")
    assert sent[0]["tools"] == [{"type": "function", "function": TOOL}]
    page.get_by_label("Result of get_weather").fill('{"sky": "blue"}')
    page.get_by_role("button", name="Send the results").click()
    expect(page.get_by_role("log")).to_contain_text("Sunny.")
    assert [message["role"] for message in sent[1]["messages"]] == ["user", "assistant", "tool"]
    assert sent[1]["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "blue"}'}


def test_a_refusal_leads_to_its_page_and_is_tried_again(open_window: OpenWindow, rows: dict[str, Any]) -> None:
    """The first answer is a fixed one; the second is the model's."""
    page = open_window("ben", refusals=(429,))
    open_playground(page, rows)
    limits = f"/o/{rows['slug']}/limits"

    def refuse(route: Any) -> None:
        body = json.dumps({"error": {"message": "The limit is reached.", "code": "rate_limit_exceeded"}})
        route.fulfill(status=429, headers={"x-limit-page": limits, "content-type": "application/json"}, body=body)

    page.route("**/portal-api/chat/completions", refuse)
    ask(page, "Name a colour.")
    assert last_answer(page) == "The limit is reached."
    expect(page.get_by_role("link", name="See the limits")).to_have_attribute("href", limits)
    page.unroute("**/portal-api/chat/completions")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#total-out")).not_to_have_text("0")
    assert page.locator(".turn-user").count() == 1, "the refused question is asked in its own place"


def test_the_code_shown_makes_the_same_call(
    open_window: OpenWindow, product: Stack, rows: dict[str, Any], tmp_path: Path
) -> None:
    page = open_window("ben")
    open_playground(page, rows)
    page.get_by_label("System prompt").fill("Answer in one word; it's enough.")
    page.get_by_label("Message", exact=True).fill("What is the capital of France?")
    page.get_by_role("button", name="Show code").click()
    dialog = page.get_by_role("dialog")
    environment = os.environ | {"API_KEY": product.demo_key}
    for protocol in ("Chat Completions", "Responses", "Messages"):
        dialog.get_by_role("button", name=protocol).click()
        for language, program in (("curl", "bash"), ("Python", sys.executable)):
            dialog.get_by_role("button", name=language).click()
            path = tmp_path / "program"
            path.write_text(page.get_by_test_id("code").inner_text())
            result = subprocess.run(
                [program, str(path)], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
            assert result.returncode == 0, result.stderr
            assert "Paris" in result.stdout, f"{protocol} in {language}: {result.stdout}"
        dialog.get_by_role("button", name="Node").click()
        code = page.get_by_test_id("code").inner_text()
        assert f'model: "{MODEL}"' in code
        assert "await" in code


def test_a_share_is_for_the_organization_alone(open_window: OpenWindow, rows: dict[str, Any]) -> None:
    page = open_window("ben")
    open_playground(page, rows)
    page.get_by_label("System prompt").fill("Be brief.")
    ask(page, "Name a colour.")
    said = last_answer(page)
    page.get_by_role("button", name="Share").click()
    expect(page.get_by_test_id("share-url")).to_contain_text("/playground/shared/")
    address = page.get_by_test_id("share-url").inner_text()

    colleague = open_window("dee", width=NARROW, refusals=(404,))
    colleague.goto(address)
    expect(colleague.get_by_text("Shared by Ben")).to_be_visible()
    expect(colleague.get_by_role("log")).to_contain_text("Name a colour.")
    assert last_answer(colleague) == said
    expect(colleague.get_by_label("Temperature")).to_have_value("0")
    expect(colleague.get_by_label("System prompt")).to_have_value("Be brief.")
    assert overflow(colleague) <= 0

    outsider = open_window("cyd", refusals=(404,))
    response = outsider.goto(address)
    assert response is not None
    assert response.status == 404

    page.goto(address)
    page.get_by_role("button", name="End sharing").first.click()
    page.get_by_role("dialog").get_by_role("button", name="End sharing").click()
    expect(page.get_by_text("no longer shared")).to_be_visible()
    response = colleague.goto(address)
    assert response is not None
    assert response.status == 404
