"""`python -m inference_grpc.server`: serve until SIGTERM or SIGINT, then drain; a second signal cuts that short.

A fault of the device ends it too, with exit code 70, once all that was generated is in the journal: whoever started it
should start it again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import uvloop

from inference_grpc.config import ConfigError, EngineConfig, read_config
from inference_grpc.errors import EngineError
from inference_grpc.server.process import EngineServer

DEVICE_FAILED = 70  # EX_SOFTWARE of sysexits.h


async def serve(config: EngineConfig) -> int:
    """Returns the exit code."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    server = EngineServer(config)
    await server.start()
    sys.stdout.write(f"READY grpc={server.address} engine_id={server.engine_id}\n")
    sys.stdout.flush()
    stopping = asyncio.create_task(signals.get())
    failing = asyncio.create_task(server.failed.wait())
    await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await server.drain(0)
        return DEVICE_FAILED
    failing.cancel()
    draining = asyncio.create_task(server.drain(config.drain_s))
    impatience = asyncio.create_task(signals.get())
    await asyncio.wait([draining, impatience], return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        logging.getLogger(__name__).warning("drain_cut_short")
        sys.exit(1)
    impatience.cancel()
    await draining
    return 0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        return uvloop.run(serve(read_config(sys.argv[1:])))
    except (ConfigError, EngineError) as error:
        sys.stderr.write(f"The engine does not start. {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
