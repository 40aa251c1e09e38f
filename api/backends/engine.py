"""A deployment of our own engine: one gRPC session for all requests of this gateway."""

from __future__ import annotations

from typing import cast
from uuid import UUID

from api.backends.stream import EventStream
from api.protocols.request import Embedding, GenerationRequest
from inference_grpc.client import EngineClient
from inference_grpc.core import request as core
from inference_grpc.errors import EngineError, InvalidRequest

CONNECT_TIMEOUT_S = 1.0


class EngineBackend:
    keeps_receipts = True

    def __init__(self, address: str, upstream_model: str) -> None:
        self._client = EngineClient(address)
        self._model = upstream_model

    @property
    def embeds(self) -> bool:
        return "embeddings" in self._client.features

    async def find_embeds(self) -> bool:
        try:
            await self._client.connect(CONNECT_TIMEOUT_S)
        except EngineError:
            return True
        return self.embeds

    def submit(
        self, request: GenerationRequest, *, request_id: UUID, tenant: str, max_tokens: int, deadline_unix_ms: int
    ) -> EventStream:
        """Raises EngineError at once when the engine is known to be out of reach."""
        return self._client.submit(
            to_engine(
                request,
                model=self._model,
                request_id=request_id,
                tenant=tenant,
                max_tokens=max_tokens,
                deadline_unix_ms=deadline_unix_ms,
            )
        )

    async def count_tokens(self, request: GenerationRequest) -> int:
        prompt = _prompt(request)
        if isinstance(prompt, list):
            return len(prompt)
        return await self._client.count_tokens(prompt)

    async def is_healthy(self) -> bool:
        try:
            await self._client.connect(CONNECT_TIMEOUT_S)
            return await self._client.is_serving()
        except EngineError:
            return False

    async def close(self) -> None:
        await self._client.close()


def to_engine(
    request: GenerationRequest, *, model: str, request_id: UUID, tenant: str, max_tokens: int, deadline_unix_ms: int
) -> core.Request:
    sampling = request.sampling
    default = core.SamplingParams()
    return core.Request(
        request_id=str(request_id),
        prompt=_prompt(request),
        sampling=core.SamplingParams(
            temperature=default.temperature if sampling.temperature is None else sampling.temperature,
            top_p=default.top_p if sampling.top_p is None else sampling.top_p,
            top_k=sampling.top_k or default.top_k,
            min_p=sampling.min_p or default.min_p,
            seed=sampling.seed,
            presence_penalty=sampling.presence_penalty or default.presence_penalty,
            frequency_penalty=sampling.frequency_penalty or default.frequency_penalty,
            repetition_penalty=(
                default.repetition_penalty if sampling.repetition_penalty is None else sampling.repetition_penalty
            ),
            logit_bias=sampling.logit_bias,
        ),
        model=model,
        tenant=tenant,
        max_tokens=max_tokens,
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        n=request.n,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        constraint=None if request.constraint is None else core.Constraint(
            request.constraint.kind, request.constraint.text
        ),
        tool_choice=core.ToolChoice(request.tool_choice.mode, request.tool_choice.names, request.tool_choice.parallel),
        deadline_unix_ms=deadline_unix_ms,
        final_only=not request.stream,
        echo=request.echo,
        embedding=None if request.embedding is None else _embedding(request.embedding),
    )  # fmt: skip


def _embedding(embedding: Embedding) -> core.Embedding:
    """A single text or list of ids is a list of one."""
    given = embedding.inputs
    is_one = isinstance(given, str) or isinstance(given[0], int)
    inputs = cast("list[str | list[int]]", [given] if is_one else given)
    return core.Embedding(inputs, embedding.dimensions or 0, embedding.encoding_format == "base64")


def _prompt(request: GenerationRequest) -> core.ChatPrompt | str | list[int]:
    if request.embedding is not None:
        return ""
    if request.messages is None:
        if request.prompt_text is None and request.prompt_tokens is None:
            raise InvalidRequest("The request has no prompt.", param="prompt")
        return cast("str | list[int]", request.prompt_text if request.prompt_tokens is None else request.prompt_tokens)
    return core.ChatPrompt(
        messages=[
            core.Message(
                role=message.role,
                content=message.content,
                reasoning=message.reasoning,
                tool_calls=[core.ToolCall(call.id, call.name, call.arguments_json) for call in message.tool_calls],
                tool_call_id=message.tool_call_id,
                name=message.name,
            )
            for message in request.messages
        ],
        tools=[core.Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in request.tools],
        template_options=request.template_options,
        continue_final_message=request.continue_final_message,
    )
