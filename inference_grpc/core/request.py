"""A request as the engine's parts see it: plain Python, made once from the wire by the servicer."""

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
    role: str
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
class ChatPrompt:
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    template_options: dict[str, Any] = field(default_factory=dict)  # free form by nature
    continue_final_message: bool = False


@dataclass(slots=True)
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Constraint:
    kind: Literal["json_schema", "json_object", "regex", "grammar"]
    text: str = ""


@dataclass(slots=True)
class Embedding:
    """Texts or token ids to be embedded: the answer is one text, the JSON list of OpenAI's embedding objects."""

    inputs: list[str | list[int]]
    dimensions: int = 0  # 0 = the model's own
    base64: bool = False  # little-endian float32 as base64, instead of numbers


@dataclass(slots=True)
class Request:
    """With an `embedding` the prompt is empty, and nothing of sampling counts."""

    request_id: str
    prompt: ChatPrompt | str | list[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    model: str = ""
    tenant: str = ""
    max_tokens: int = 0  # per choice; 0 = up to the context
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    constraint: Constraint | None = None
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    deadline_unix_ms: int = 0
    priority: int = 0
    final_only: bool = False
    echo: bool = False
    embedding: Embedding | None = None
