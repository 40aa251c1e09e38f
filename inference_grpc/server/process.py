"""One engine server from start to drain: backend, journal, gRPC with health and reflection, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
import prometheus_client
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from inference_grpc import scripted
from inference_grpc.config import ConfigError, EngineConfig
from inference_grpc.core.backend import Backend
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.protos.v1 import inference_pb2_grpc as pb_grpc
from inference_grpc.scripted.backend import ScriptedBackend
from inference_grpc.server import faults
from inference_grpc.server.dispatcher import Dispatcher
from inference_grpc.server.metrics import EngineMetrics
from inference_grpc.server.receipts import ReceiptJournal
from inference_grpc.server.servicer import InferenceServicer
from inference_grpc.wire import CHANNEL_OPTIONS

logger = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
WORKERS = 4  # threads that tokenize and compile constraints
STOP_S = 1.0  # for calls that are still open when the server goes

SERVER_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS,
    # Two servers on one port would share its connections by chance; a taken port must stop the start.
    ("grpc.so_reuseport", 0),
    # Clients ping every 30 s, also without a call; grpc's default is to take that for abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


def load_backend(config: EngineConfig) -> Backend:
    if config.kind == "torch":
        # Imported here: the scripted engine runs where torch is not installed.
        from inference_grpc import engine

        return engine.load_backend(config)
    return scripted.load_backend(config)


def open_journal(config: EngineConfig, backend: Backend) -> ReceiptJournal:
    if isinstance(backend, ScriptedBackend):
        return faults.FaultyJournal(config.journal_dir, backend.faults)
    return ReceiptJournal(config.journal_dir)


class EngineServer:
    """`async with EngineServer(config) as server:` serves on `server.address` and drains at the end."""

    def __init__(self, config: EngineConfig, load: Callable[[EngineConfig], Backend] = load_backend) -> None:
        self._config = config
        self._load = load
        self.address = ""
        self.engine_id = ""
        self.failed = asyncio.Event()  # the device has failed: nothing is taken any more, the process should end

    async def start(self) -> None:
        """Bind, load the model, open the journal, serve. Raises `ConfigError` when the address is taken."""
        config = self._config
        self._server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=4096)
        try:
            port = self._server.add_insecure_port(config.listen)
        except RuntimeError:
            raise ConfigError(
                f"ENGINE_LISTEN (--listen) is {config.listen!r}: the address is taken or not of this machine."
            ) from None
        self.address = f"{config.host}:{port}"
        self._backend = await asyncio.to_thread(self._load, config)
        self._journal = open_journal(config, self._backend)
        self.engine_id = self._journal.engine_id
        if self._journal.lost:
            logger.warning("lost_requests_journalled count=%d", self._journal.lost)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="prepare")
        self._metrics = EngineMetrics(self._backend.info)
        self._dispatcher = Dispatcher(self._backend, self._journal, self._metrics, config, self._workers)
        if isinstance(self._backend, ScriptedBackend):
            faults.connect(self._backend.faults, self._dispatcher)
        self._servicer = InferenceServicer(self._backend, self._dispatcher, self._journal, self._metrics, self._workers)
        self._health = health.aio.HealthServicer()
        pb_grpc.add_InferenceServicer_to_server(self._servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        if config.metrics_port:
            self._start_metrics()
        self._loop = asyncio.get_running_loop()
        self._backend.start(self._dispatcher.on_step, self._on_fault)
        await self._server.start()
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        logger.info("engine_ready address=%s engine_id=%s kind=%s", self.address, self.engine_id, config.kind)

    async def drain(self, grace_s: float) -> None:
        """Tell the health check, refuse what is new, let the rest finish for `grace_s`, write all receipts, stop."""
        await self._health.enter_graceful_shutdown()
        await self._dispatcher.drain(grace_s)
        self._servicer.close_sessions()
        await self._server.stop(STOP_S)
        await asyncio.to_thread(self._journal.close)
        self._workers.shutdown(wait=False)
        logger.info("engine_stopped address=%s", self.address)

    def _on_fault(self) -> None:
        """From the engine's own thread."""
        self._loop.call_soon_threadsafe(self.failed.set)

    def _start_metrics(self) -> None:
        port, host = self._config.metrics_port, self._config.host
        try:
            prometheus_client.start_http_server(port, host, self._metrics.registry)
        except OSError as error:
            raise ConfigError(f"ENGINE_METRICS_PORT (--metrics-port) is '{port}': {error.strerror}.") from error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain(0)
