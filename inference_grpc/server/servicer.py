"""The gRPC methods: translation only. What a request goes through is in dispatcher.py."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import asdict
from typing import Any, NoReturn

import grpc

from inference_grpc import __version__, errors
from inference_grpc.core.backend import Backend
from inference_grpc.errors import BY_CODE, EngineError, InvalidRequest
from inference_grpc.events import Failed
from inference_grpc.protos.v1 import inference_pb2 as pb
from inference_grpc.protos.v1 import inference_pb2_grpc as pb_grpc
from inference_grpc.server.dispatcher import Dispatcher
from inference_grpc.server.fingerprint import fingerprint_of
from inference_grpc.server.metrics import EngineMetrics
from inference_grpc.server.outbox import Outbox
from inference_grpc.server.receipts import Receipt, ReceiptJournal
from inference_grpc.wire import (
    ERROR_CODE_KEY,
    ERROR_FIELDS_KEY,
    FEATURES_KEY,
    FINGERPRINT_KEY,
    SESSION_KEY,
    chat_from_proto,
    usage_to_proto,
)

logger = logging.getLogger(__name__)

# What the failure of a call of its own is in gRPC. Inside a Session a failure is a FAILED row instead.
STATUS: dict[type[EngineError], grpc.StatusCode] = {
    errors.EngineError: grpc.StatusCode.INTERNAL,
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PromptTooLong: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedSchema: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelNotServed: grpc.StatusCode.NOT_FOUND,
    errors.QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.EngineShutdown: grpc.StatusCode.UNAVAILABLE,
    errors.EngineUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.DeviceFault: grpc.StatusCode.INTERNAL,
    errors.SlowReader: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_RECEIPT_STATUS = {
    "completed": pb.Receipt.COMPLETED,
    "cancelled": pb.Receipt.CANCELLED_BY_CLIENT,
    "failed": pb.Receipt.FAILED_IN_ENGINE,
    "lost": pb.Receipt.LOST,
}


class InferenceServicer(pb_grpc.InferenceServicer):  # type: ignore[misc]  # the generated class is untyped
    def __init__(
        self,
        backend: Backend,
        dispatcher: Dispatcher,
        journal: ReceiptJournal,
        metrics: EngineMetrics,
        workers: Executor,
    ) -> None:
        self._backend = backend
        self._dispatcher = dispatcher
        self._journal = journal
        self._metrics = metrics
        self._workers = workers
        info = backend.info()
        self._fingerprint = fingerprint_of(__version__, info)
        self._features = info.features
        self._outboxes: set[Outbox] = set()

    def close_sessions(self) -> None:
        """End every session once its open requests have ended."""
        for outbox in self._outboxes:
            outbox.close_input()

    async def Session(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:  # from the proto
        session = (
            (SESSION_KEY, self._journal.engine_id),
            (FINGERPRINT_KEY, self._fingerprint),
            (FEATURES_KEY, ",".join(self._features)),
        )
        await context.send_initial_metadata(session)
        outbox = Outbox()
        self._outboxes.add(outbox)
        self._metrics.sessions += 1
        reader = asyncio.create_task(self._read(requests, outbox))
        writer = asyncio.create_task(self._write(outbox, context))
        try:
            ends: list[asyncio.Future[Any]] = [writer, outbox.broken]  # of two types; only which one ends counts
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._dispatcher.drop(outbox)
            self._outboxes.discard(outbox)
            self._metrics.sessions -= 1
            reader.cancel()
            writer.cancel()
            await asyncio.wait([reader, writer])
            for task in (reader, writer):
                error = None if task.cancelled() else task.exception()
                if isinstance(error, grpc.aio.InternalError):
                    logger.info("session_lost")  # the peer went while something was sent to it
                elif error is not None:
                    logger.error("session_task_failed", exc_info=error)
        if outbox.broken.done():
            await context.abort(*outbox.broken.result())

    async def _read(self, requests: AsyncIterator[pb.SessionRequest], outbox: Outbox) -> None:
        try:
            async for message in requests:
                kind = message.WhichOneof("kind")
                if kind == "submit":
                    self._dispatcher.submit(outbox, message.submit)
                elif kind == "cancel":
                    self._dispatcher.cancel(outbox, message.cancel.handle)
                else:
                    reason = "A SessionRequest has neither submit nor cancel."
                    outbox.break_off(grpc.StatusCode.INVALID_ARGUMENT, reason)
        except Exception:
            # Without its reader the session would stand and answer nothing.
            outbox.break_off(grpc.StatusCode.INTERNAL, "The engine failed while it read the session.")
            raise
        outbox.close_input()

    async def _write(self, outbox: Outbox, context: Any) -> None:
        """Send what waits until nothing more will come. While a write waits for the reader, later steps are joined."""
        while not outbox.is_finished:
            await outbox.wait()
            while (step := outbox.take()) is not None:
                self._metrics.steps_sent += 1
                await context.write(step)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:  # from the proto
        """The steps of one request; a failure is its last row and the status of the call."""
        request.handle = 0
        outbox = Outbox()
        try:
            self._dispatcher.submit(outbox, request)
            outbox.close_input()
            await self._write(outbox, context)
            if outbox.failure is not None:
                await _abort(context, _error_of(outbox.failure))
        finally:
            self._dispatcher.drop(outbox)

    async def CountTokens(self, request: pb.CountTokensRequest, context: Any) -> pb.CountTokensResponse:
        try:
            kind = request.WhichOneof("prompt")
            if kind is None:
                raise InvalidRequest("The request has no prompt: set chat or text.", param="prompt")
            prompt = chat_from_proto(request.chat) if kind == "chat" else request.text
            count = self._backend.count_tokens
            tokens = await asyncio.get_running_loop().run_in_executor(self._workers, count, prompt)
        except EngineError as error:
            await _abort(context, error)
        return pb.CountTokensResponse(tokens=tokens)

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:
        # What is a matter of the process's own metrics alone has no field in the answer.
        told = pb.GetInfoResponse.DESCRIPTOR.fields_by_name
        info = {name: value for name, value in asdict(self._backend.info()).items() if name in told}
        return pb.GetInfoResponse(
            engine_id=self._journal.engine_id, version=__version__, fingerprint=self._fingerprint, **info
        )

    async def ListReceipts(self, request: pb.ListReceiptsRequest, context: Any) -> pb.ListReceiptsResponse:
        try:
            page = await asyncio.wrap_future(
                self._journal.list_receipts(
                    after=request.after_sequence,
                    limit=request.limit,
                    acknowledge_through=request.acknowledge_through,
                )
            )
        except EngineError as error:
            await _abort(context, error)
        return pb.ListReceiptsResponse(
            engine_id=self._journal.engine_id,
            receipts=[_receipt_to_proto(receipt) for receipt in page.receipts],
            last_sequence=page.last_sequence,
        )


def _receipt_to_proto(receipt: Receipt) -> pb.Receipt:
    return pb.Receipt(
        sequence=receipt.sequence,
        request_id=receipt.request_id,
        model=receipt.model,
        tenant=receipt.tenant,
        status=_RECEIPT_STATUS[receipt.status],
        usage=usage_to_proto(receipt.usage),
        error_code=receipt.error_code,
        started_unix_ms=receipt.started_unix_ms,
        finished_unix_ms=receipt.finished_unix_ms,
        ttft_ms=receipt.ttft_ms,
    )


def _error_of(failed: Failed) -> EngineError:
    error = BY_CODE.get(failed.code, EngineError)(failed.message)
    error.fields = failed.fields
    return error


async def _abort(context: Any, error: EngineError) -> NoReturn:
    await context.abort(
        STATUS[type(error)],
        error.message,
        ((ERROR_CODE_KEY, error.code), (ERROR_FIELDS_KEY, json.dumps(error.fields))),
    )
    raise AssertionError("abort raises")
