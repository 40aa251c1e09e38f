"""Copy-paste programs that make one call with the reader's own base URL and model."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings


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
    max_tokens=256,
    messages=[{{"role": "user", "content": "What is the capital of France?"}}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)""",
    ),
)


def make_snippets(model: str) -> list[Snippet]:
    """The Anthropic client appends /v1 itself, so it gets the address without it."""
    return [
        Snippet(
            snippet.name,
            snippet.title,
            snippet.install,
            snippet.code.format(base=settings.API_BASE_URL, root=settings.PUBLIC_URL, model=model),
        )
        for snippet in SNIPPETS
    ]


def first_call(model: str, secret: str) -> str:
    """The curl program with the secret in it, for the one page that shows the secret."""
    curl = next(snippet for snippet in make_snippets(model) if snippet.name == "curl")
    return curl.code.replace("sk-tf-…", secret)
