"""The one internal request shape, and the events that answer it.

Each dialect (`chat.py`, `completions.py`, `responses.py`, `messages.py`) turns its wire body into a `GenerationRequest`
and turns `inference_grpc.events` into its frames. Nothing past a dialect knows which one it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments_json: str


@dataclass(slots=True)
class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]  # JSON Schema, free form by nature
    strict: bool = False


@dataclass(slots=True)
class ToolChoice:
    """`names`: the one of `named`, the subset of `allowed`; of `required` the tools to choose among, empty for all."""

    mode: Literal["auto", "none", "required", "named", "allowed"] = "auto"
    names: list[str] = field(default_factory=list)
    parallel: bool = True


@dataclass(slots=True)
class Sampling:
    """None means the engine's default for the model."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Constraint:
    """What the text must be: a JSON Schema (as JSON text), any JSON object, a regular expression or a grammar."""

    kind: Literal["json_schema", "json_object", "regex", "grammar"]
    text: str = ""


@dataclass(slots=True)
class Embedding:
    """Texts or token ids to be embedded. The answer is one text delta: the JSON list of OpenAI's embedding objects."""

    inputs: str | list[str] | list[int] | list[list[int]]
    encoding_format: str
    dimensions: int | None = None


@dataclass(slots=True)
class GenerationRequest:
    """One call, whatever the dialect. Exactly one of `messages`, `prompt_text`, `prompt_tokens`, `embedding` is set."""

    model: str
    stream: bool
    messages: list[Message] | None = None
    prompt_text: str | None = None
    prompt_tokens: list[int] | None = None
    embedding: Embedding | None = None
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    template_options: dict[str, Any] = field(default_factory=dict)  # chat_template_kwargs, free form by nature
    continue_final_message: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None  # per choice
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    constraint: Constraint | None = None
    echo: bool = False
    end_user: str | None = None  # `user` / `safety_identifier` / `metadata.user_id`, for the caller's own reports
