"""How coding agents are pointed here, with the reader's own base URL and model.

Each was run so against the gateway; docs/api/agents.md says in which version.
"""

from __future__ import annotations

from django.conf import settings

from portal.catalog.selectors import ModelInfo
from portal.home.snippets import Snippet

AGENTS = (
    Snippet(
        "claude-code",
        "Claude Code",
        "npm install -g @anthropic-ai/claude-code",
        """export ANTHROPIC_BASE_URL="{root}"
export ANTHROPIC_AUTH_TOKEN="sk-tf-…"
export ANTHROPIC_MODEL="{model}"
# Its small tasks, such as titles
export ANTHROPIC_DEFAULT_HAIKU_MODEL="{model}"
export CLAUDE_CODE_MAX_OUTPUT_TOKENS={output_tokens}
export CLAUDE_CODE_AUTO_COMPACT_WINDOW={context_tokens}

claude""",
    ),
    Snippet(
        "codex",
        "Codex",
        "npm install -g @openai/codex",
        """# ~/.codex/config.toml; then: export API_KEY="sk-tf-…"
model = "{model}"
model_provider = "tokenfactory"
model_context_window = {context_tokens}

[model_providers.tokenfactory]
name = "Token Factory"
base_url = "{base}"
env_key = "API_KEY"
wire_api = "responses"
# One connection for a whole session
supports_websockets = true""",
    ),
    Snippet(
        "opencode",
        "opencode",
        "npm install -g opencode-ai",
        """{{
  "$schema": "https://opencode.ai/config.json",
  "model": "tokenfactory/{model}",
  "small_model": "tokenfactory/{model}",
  "provider": {{
    "tokenfactory": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "Token Factory",
      "options": {{ "baseURL": "{base}", "apiKey": "{{env:API_KEY}}" }},
      "models": {{
        "{model}": {{ "limit": {{ "context": {context_tokens}, "output": {output_tokens} }} }}
      }}
    }}
  }}
}}""",
    ),
    Snippet(
        "cline",
        "Cline",
        "npm install -g cline",
        """export API_KEY="sk-tf-…"

cline auth -p openai-compatible -b "{base}" -m "{model}" -k "$API_KEY"
cline "Explain this repository\"""",
    ),
    Snippet(
        "continue",
        "Continue",
        "npm install -g @continuedev/cli",
        """# ~/.continue/config.yaml
name: Token Factory
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: openai
    model: {model}
    apiBase: {base}
    apiKey: sk-tf-…
    roles: [chat, edit]""",
    ),
    Snippet(
        "aider",
        "aider",
        "pip install aider-chat",
        """export OPENAI_API_BASE="{base}"
export OPENAI_API_KEY="sk-tf-…"

aider --model "openai/{model}\"""",
    ),
    Snippet(
        "qwen-code",
        "Qwen Code",
        "npm install -g @qwen-code/qwen-code",
        """export OPENAI_BASE_URL="{base}"
export OPENAI_API_KEY="sk-tf-…"
export OPENAI_MODEL="{model}"

qwen --auth-type openai""",
    ),
)


def make_agents(model: ModelInfo | None) -> list[Snippet]:
    """Of an answer a quarter of the context at most: agents ask for all they may have, whatever the prompt leaves.

    Without a model on offer, its place and sizes are made up.
    """
    context_tokens = model.context_tokens if model else 32768
    words = {
        "base": settings.API_BASE_URL,
        "root": settings.PUBLIC_URL,
        "model": model.name if model else "your-model",
        "context_tokens": context_tokens,
        "output_tokens": min(model.max_output_tokens if model else 8192, context_tokens // 4),
    }
    return [Snippet(each.name, each.title, each.install, each.code.format(**words)) for each in AGENTS]
