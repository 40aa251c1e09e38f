"""Copy-paste programs that make one call with the reader's own base URL and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext, gettext_noop


@dataclass(frozen=True, slots=True)
class Snippet:
    """`install` is the command that the program needs first; empty when none."""

    name: str
    title: str
    install: str
    code: str


SNIPPETS = (
    Snippet(
        "curl",
        "curl",
        "",
        """export API_KEY="sk-tf-…"

curl -N {base}/chat/completions \\
  -H "Authorization: Bearer $API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{
    "model": "{model}",
    "stream": true,
    "max_tokens": 200,
    "messages": [{{"role": "user", "content": "What is the capital of France?"}}]
  }}'""",
    ),
    Snippet(
        "python",
        "Python",
        "pip install openai",
        """import os
from openai import OpenAI

client = OpenAI(
    base_url="{base}",
    api_key=os.environ["API_KEY"],
)

stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
    max_tokens=200,
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)""",
    ),
    Snippet(
        "node",
        "Node",
        "npm install openai",
        """import OpenAI from "openai";

const client = new OpenAI({{
  baseURL: "{base}",
  apiKey: process.env.API_KEY,
}});

const stream = await client.chat.completions.create({{
  model: "{model}",
  messages: [{{ role: "user", content: "What is the capital of France?" }}],
  max_tokens: 200,
  stream: true,
}});
for await (const chunk of stream) {{
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}}""",
    ),
    Snippet(
        "anthropic",
        "Anthropic",
        "pip install anthropic",
        """import os
from anthropic import Anthropic

client = Anthropic(
    base_url="{root}",
    api_key=os.environ["API_KEY"],
)

with client.messages.stream(
    model="{model}",
    max_tokens=200,
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)""",
    ),
)

_OPENAI = """import json
import os

from openai import OpenAI

client = OpenAI(base_url="{base}", api_key=os.environ["API_KEY"])
"""
# What comes after the first call, for the OpenAI client in Python.
GUIDES = (
    Snippet(
        "environment",
        gettext_noop("No code change"),
        "",
        """# Every program that uses OpenAI's clients
export OPENAI_BASE_URL="{base}"
export OPENAI_API_KEY="sk-tf-…"

# Every program that uses Anthropic's
export ANTHROPIC_BASE_URL="{root}"
export ANTHROPIC_API_KEY="sk-tf-…\"""",
    ),
    Snippet(
        "structured",
        gettext_noop("JSON by a schema"),
        "",
        _OPENAI
        + """
schema = {{
    "type": "object",
    "properties": {{"city": {{"type": "string"}}, "country": {{"type": "string"}}}},
    "required": ["city", "country"],
    "additionalProperties": False,
}}
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
    response_format={{
        "type": "json_schema",
        "json_schema": {{"name": "place", "strict": True, "schema": schema}},
    }},
)
print(json.loads(answer.choices[0].message.content))""",
    ),
    Snippet(
        "tools",
        gettext_noop("Tools"),
        "",
        _OPENAI
        + """
tools = [
    {{
        "type": "function",
        "function": {{
            "name": "get_weather",
            "description": "The weather in a city now.",
            "parameters": {{
                "type": "object",
                "properties": {{"city": {{"type": "string"}}}},
                "required": ["city"],
            }},
        }},
    }}
]
messages = [{{"role": "user", "content": "What is the weather in Paris?"}}]
answer = client.chat.completions.create(
    model="{model}", messages=messages, tools=tools, tool_choice="required"
)
for call in answer.choices[0].message.tool_calls or []:
    print(call.function.name, json.loads(call.function.arguments))""",
    ),
    Snippet(
        "refusals",
        gettext_noop("Limits and errors"),
        "",
        """import os

import openai

client = openai.OpenAI(base_url="{base}", api_key=os.environ["API_KEY"])

try:
    answer = client.chat.completions.create(
        model="{model}",
        messages=[{{"role": "user", "content": "Hello"}}],
    )
    print(answer.choices[0].message.content)
except openai.RateLimitError as error:
    told = error.response.headers
    print(error.message)  # which limit, whose, how much is left, what to do
    print(told.get("retry-after"), told.get("x-limit-page"))
except openai.APIStatusError as error:
    print(error.status_code, error.code, error.message)
    print(error.response.headers.get("x-request-id"))""",
    ),
    Snippet(
        "end_users",
        gettext_noop("Your own users"),
        "",
        """import os

from openai import OpenAI

client = OpenAI(base_url="{base}", api_key=os.environ["API_KEY"])

# Usage is split by end user, and the id finds the call on the usage page.
raw = client.chat.completions.with_raw_response.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello"}}],
    user="customer-42",
)
print(raw.headers["x-request-id"], raw.parse().usage.total_tokens)""",
    ),
)


def make_snippets(model: str, snippets: Sequence[Snippet] = SNIPPETS) -> list[Snippet]:
    """The Anthropic client appends /v1 itself, so it gets the address without it."""
    return [
        Snippet(
            snippet.name,
            gettext(snippet.title),
            snippet.install,
            snippet.code.format(base=settings.API_BASE_URL, root=settings.PUBLIC_URL, model=model),
        )
        for snippet in snippets
    ]


def first_call(model: str, secret: str) -> str:
    """The curl program with the secret in it, for the one page that shows the secret."""
    curl = next(snippet for snippet in make_snippets(model) if snippet.name == "curl")
    return curl.code.replace("sk-tf-…", secret)
