"""What a scripted fault needs of the server itself: a receipt that is wrong, and a session that breaks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from inference_grpc.scripted.faults import Faults
from inference_grpc.server.dispatcher import Dispatcher
from inference_grpc.server.receipts import Ending, Receipt, ReceiptJournal


class FaultyJournal(ReceiptJournal):
    """Writes true receipts, except of the requests for which a fault was ordered."""

    def __init__(self, directory: Path, faults: Faults) -> None:
        super().__init__(directory)
        self._faults = faults

    def finish(self, key: int, receipt: Receipt) -> None:
        fault = self._faults.receipts.pop(receipt.request_id, None)
        if fault is None:
            super().finish(key, receipt)
        elif fault == "drop":
            self._queue.put(Ending(key, None))
        else:
            tokens = max(0, receipt.usage.completion_tokens + fault)
            super().finish(key, replace(receipt, usage=replace(receipt.usage, completion_tokens=tokens)))


def connect(faults: Faults, dispatcher: Dispatcher) -> None:
    """Let the scripted engine's thread break the session that a request came on."""
    loop = asyncio.get_running_loop()
    faults.break_session = lambda key: loop.call_soon_threadsafe(
        dispatcher.break_session, key, "The session was broken by a scripted fault."
    )
