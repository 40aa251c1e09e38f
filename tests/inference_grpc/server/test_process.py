"""The process around the service: configuration, health, reflection, metrics, and the unary calls' errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
import uuid
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from inference_grpc import errors
from inference_grpc.client import EngineClient
from inference_grpc.config import ConfigError, EngineConfig, read_config, settings
from inference_grpc.core.request import ChatPrompt, Message, Request
from inference_grpc.events import Failed
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.protos.v1 import inference_pb2_grpc as pb_grpc
from inference_grpc.server.__main__ import DEVICE_FAILED
from inference_grpc.server.process import EngineServer
from inference_grpc.server.receipts import ReceiptJournal
from inference_grpc.server.servicer import STATUS
from tests.inference_grpc.rig import PATIENCE_S, ROOT, Rig, Start, all_events


async def test_health_and_reflection_answer(rig: Rig) -> None:
    assert await rig.client.is_serving()
    async with grpc.aio.insecure_channel(rig.server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await call.read()
        services = {service.name for service in answer.list_services_response.service}
        assert {"inference.v1.Inference", "grpc.health.v1.Health"} <= services
        call.cancel()


async def test_info_says_what_the_backend_and_the_server_know(manual: Rig) -> None:
    info = await manual.client.get_info()
    assert (info.model, info.context_tokens, info.pages_total, info.pages_free) == ("manual", 100, 10, 4)
    assert info.engine_id == manual.server.engine_id


async def test_tokens_are_counted(rig: Rig) -> None:
    assert await rig.client.count_tokens("four words of text") == 4
    events = await rig.run("four words of text")
    counted = await rig.client.count_tokens(ChatPrompt([Message("user", "four words of text")]))
    assert counted == events[0].prompt_tokens  # type: ignore[union-attr]


async def generate(rig: Rig, request: pb.GenerateRequest) -> tuple[list[int], grpc.aio.Call]:
    """The kinds of all rows, and the call."""
    async with grpc.aio.insecure_channel(rig.server.address) as channel:
        call = pb_grpc.InferenceStub(channel).Generate(request)
        kinds: list[int] = []
        try:
            async for step in call:
                kinds += step.kinds
        except grpc.aio.AioRpcError as error:
            return kinds, error
        return kinds, call


async def test_generate_answers_one_request_by_the_same_rows(rig: Rig) -> None:
    kinds, call = await generate(rig, pb.GenerateRequest(text="TOKENS:3", handle=9))
    assert kinds[0] == pb.STARTED
    assert kinds[-2:] == [pb.CHOICE_FINISHED, pb.FINISHED]
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("error", STATUS, ids=lambda error: error.code)
async def test_a_failure_of_generate_is_its_status_and_its_last_row(rig: Rig, error: type[errors.EngineError]) -> None:
    for order in (f"REFUSE:{error.code}", f"FAIL:{error.code}@2"):
        kinds, failure = await generate(rig, pb.GenerateRequest(text=order))
        assert kinds[-1] == pb.FAILED
        assert failure.code() is STATUS[error]
        assert dict(failure.trailing_metadata())["engine-error-code"] == error.code


def test_every_engine_error_has_a_status() -> None:
    assert set(STATUS) == set(errors.BY_CODE.values())


async def test_leaving_a_generate_call_cancels_it(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(rig.server.address) as channel:
        call = pb_grpc.InferenceStub(channel).Generate(pb.GenerateRequest(text="STALL:1"))
        await call.read()
        call.cancel()
    (receipt,) = await rig.receipts(1)
    assert receipt.status == "cancelled"


async def test_a_scrape_tells_latencies_tokens_and_pages(start: Start, unused_tcp_port: int) -> None:
    rig = await start(metrics_port=unused_tcp_port)
    await all_events(rig.submit("TOKENS:20 CACHED:1"))
    await all_events(rig.submit("FAIL:device_fault@1"))
    text = urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}/metrics").read().decode()  # noqa: ASYNC210
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    model = 'model_name="scripted"'
    assert lines[f"gen_ai_server_time_to_first_token_seconds_count{{{model}}}"] == "2.0"
    assert lines[f"engine_inter_token_latency_seconds_count{{{model}}}"] == "19.0"
    assert lines[f"engine_generation_tokens_total{{{model}}}"] == "21.0"
    assert lines[f"engine_cached_prompt_tokens_total{{{model}}}"] == "1.0"
    assert lines[f'engine_requests_total{{{model},outcome="completed"}}'] == "1.0"
    assert lines[f'engine_requests_total{{{model},outcome="device_fault"}}'] == "1.0"
    assert lines[f"engine_kv_cache_pages_free{{{model}}}"] == "1024.0"
    assert lines[f"engine_num_requests_running{{{model}}}"] == "0.0"


async def test_a_taken_address_or_metrics_port_stops_the_start(rig: Rig, config: EngineConfig, tmp_path: Path) -> None:
    taken = replace(config, listen=rig.server.address, journal_dir=tmp_path / "other")
    with pytest.raises(ConfigError, match="ENGINE_LISTEN"):
        await EngineServer(taken).start()
    port = int(rig.server.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match="ENGINE_METRICS_PORT"):
        await EngineServer(replace(config, journal_dir=tmp_path / "third", metrics_port=port)).start()


def test_flags_win_over_the_environment() -> None:
    environment = {"ENGINE_KIND": "scripted", "ENGINE_PAGES": "64", "ENGINE_MODEL": "m"}
    config = read_config(["--pages", "128"], environment)
    assert (config.kind, config.pages, config.model, config.listen) == ("scripted", 128, "m", "127.0.0.1:50051")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ENGINE_KIND", "vllm"),
        ("ENGINE_MODEL", ""),
        ("ENGINE_LISTEN", "50051"),
        ("ENGINE_LISTEN", "127.0.0.1:70000"),
        ("ENGINE_JOURNAL_DIR", ""),
        ("ENGINE_METRICS_PORT", "-1"),
        ("ENGINE_METRICS_PORT", "70000"),
        ("ENGINE_MAX_SEQUENCES", "0"),
        ("ENGINE_PAGES", "many"),
        ("ENGINE_SCENARIO", "/nowhere.toml"),
    ],
)
def test_an_odd_value_is_refused_by_the_name_of_its_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        read_config([], {"ENGINE_KIND": "scripted", variable: value})


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = [setting.metadata["variable"] for setting in settings()]
    assert len(set(variables)) == len(variables)
    assert all(variable.startswith("ENGINE_") for variable in variables)


def test_the_process_says_why_it_does_not_start() -> None:
    command = [sys.executable, "-m", "inference_grpc.server", "--engine", "scripted", "--pages", "many"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "ENGINE_PAGES (--pages) is 'many'" in result.stderr


def test_client_and_scripted_server_need_no_torch() -> None:
    code = "import sys, inference_grpc.client, inference_grpc.server.process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


BREAKS_WITH_TWO = """
import sys
from inference_grpc.engine.runner import Runner
from inference_grpc.server.__main__ import main

run = Runner.run

def run_or_break(self, batch):
    if len(batch.sampling) == 2 and all(sequence.generated > 3 for sequence in batch.sampling):
        raise RuntimeError("the device is gone")
    return run(self, batch)

Runner.run = run_or_break
sys.argv[1:] = ["--tiny-random", "qwen3_5", "--listen", "127.0.0.1:0", "--journal", sys.argv[1]]
sys.exit(main())
"""


async def test_a_device_fault_ends_the_process_after_journalling_what_was_made(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BREAKS_WITH_TWO, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(240):
        address = (await process.stdout.readline()).decode().split()[1].removeprefix("grpc=")
        async with EngineClient(address, timeout_s=PATIENCE_S) as client:
            await client.connect(PATIENCE_S)
            requests = [Request(str(uuid.uuid4()), "hello", max_tokens=5000, ignore_eos=True) for _ in range(2)]
            # What a bad request asks for is refused, and ends nothing.
            refused = await all_events(client.submit(Request(str(uuid.uuid4()), [10**6], max_tokens=1)))
            assert getattr(refused[-1], "code", "") == "invalid_request"
            events = await asyncio.gather(*(all_events(client.submit(request)) for request in requests))
        assert await process.wait() == DEVICE_FAILED
    for answer in events:
        assert isinstance(answer[-1], Failed)
        assert answer[-1].code == "device_fault"
    journal = ReceiptJournal(tmp_path)
    receipts = {
        receipt.request_id: receipt
        for receipt in journal.list_receipts(after=0, limit=10, acknowledge_through=0).result(PATIENCE_S).receipts
    }
    journal.close()
    assert receipts.keys() == {request.request_id for request in requests}
    for request, answer in zip(requests, events, strict=True):
        receipt = receipts[request.request_id]
        assert (receipt.status, receipt.error_code) == ("failed", "device_fault")
        assert receipt.usage == answer[-1].usage  # type: ignore[union-attr]
    assert sum(receipt.usage.completion_tokens for receipt in receipts.values()) > 5


async def test_a_failed_backend_is_told_to_who_serves(manual: Rig) -> None:
    assert not manual.server.failed.is_set()
    manual.backend.on_fault()
    async with asyncio.timeout(PATIENCE_S):
        await manual.server.failed.wait()
