"""What a request says survives the wire, zeros and absences included."""

from __future__ import annotations

import pytest

from inference_grpc.core.request import (
    ChatPrompt,
    Constraint,
    Embedding,
    Message,
    Request,
    SamplingParams,
    Tool,
    ToolCall,
    ToolChoice,
)
from inference_grpc.errors import InvalidRequest
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.wire import request_from_proto, request_to_proto

CHAT = ChatPrompt(
    messages=[
        Message("system", "Be brief."),
        Message("assistant", None, "hm", [ToolCall("call_1", "add", '{"a": 1}')]),
        Message("tool", "", tool_call_id="call_1"),
        Message("user", "你好", name="Ada"),
    ],
    tools=[Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True)],
    template_options={"enable_thinking": False},
    continue_final_message=True,
)


@pytest.mark.parametrize(
    "request_",
    [
        Request("a", CHAT),
        Request("a", "", model="m", tenant="7", max_tokens=5, stop=["\n", "."], ignore_eos=True, n=3, echo=True),
        Request("a", [1, 2, 0], logprobs=True, top_logprobs=20, deadline_unix_ms=1, priority=-2, final_only=True),
        Request("a", "x", sampling=SamplingParams(0.0, 0.5, 0, 0.0, 0, -0.5, 0.25, 1.5, {5: -1.0})),
        Request("a", "x", sampling=SamplingParams(seed=-(2**62))),
        Request("a", "x", constraint=Constraint("json_schema", "{}")),
        Request("a", "x", constraint=Constraint("json_object")),
        Request("a", "x", constraint=Constraint("regex", "a+")),
        Request("a", "x", constraint=Constraint("grammar", "root ::= 'a'")),
        Request("a", "x", tool_choice=ToolChoice("named", ["add"], parallel=False)),
        Request("a", "", embedding=Embedding(["x", [1, 2]], dimensions=3, base64=True)),
        Request("a", "x", tool_choice=ToolChoice("allowed", ["add", "sub"])),
        Request("a", "x", tool_choice=ToolChoice("auto", parallel=False)),
    ],
    ids=lambda request: str(request)[:60],
)
def test_a_request_survives_the_wire(request_: Request) -> None:
    message = pb.GenerateRequest.FromString(request_to_proto(request_, 5).SerializeToString())
    assert message.handle == 5
    assert request_from_proto(message) == request_


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (pb.GenerateRequest(), "prompt"),
        (pb.GenerateRequest(text="x", top_logprobs=21), "top_logprobs"),
        (pb.GenerateRequest(chat=pb.ChatPrompt(template_options_json="[]")), "template_options"),
        (pb.GenerateRequest(chat=pb.ChatPrompt(tools=[pb.Tool(name="a", parameters_json="{")])), "tools.parameters"),
        (pb.GenerateRequest(text="x", tool_choice=pb.ToolChoice(mode=9)), "tool_choice"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_protobuf_lets_through_is_refused_by_the_name_of_its_field(
    message: pb.GenerateRequest, param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request_from_proto(message)
    assert refused.value.fields["param"] == param
