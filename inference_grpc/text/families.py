"""Model families: which syntax a model uses for tool calls and for its reasoning, read from its chat template."""

from __future__ import annotations

from typing import Literal

# qwen3: XML-like calls, `<function=NAME><parameter=K>`. hermes: JSON calls. chatml: no tool syntax of its own, so it is
# taught the hermes one by a system preamble (tool_prompt.py). All three put a call between the same two tags.
Family = Literal["qwen3", "hermes", "chatml"]

# Where reasoning may stand in the output: nowhere, opened by the prompt already, or opened by the model at its start.
ReasoningStart = Literal["none", "open", "optional"]

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


def family_of(template: str) -> Family:
    """The family of a model from the text of its chat template."""
    if not renders_tools(template):
        return "chatml"
    return "qwen3" if "<function=" in template else "hermes"


def renders_tools(template: str) -> bool:
    """Whether the template writes tools and calls itself, in a syntax that we parse; if not, `with_tools` does it."""
    return "tools" in template and CALL_OPEN in template


def reasoning_start(thinking: bool, prompt_suffix: str) -> ReasoningStart:
    """`prompt_suffix` is the end of the rendered prompt; `thinking` says that the model may open `<think>` itself."""
    if prompt_suffix.rstrip().endswith(THINK_OPEN):
        return "open"
    if thinking and not prompt_suffix.rstrip().endswith(THINK_CLOSE):
        return "optional"
    return "none"
