"""`make up`: run the whole product in the foreground until Ctrl-C or `make down`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

# SIGINT is named too: a shell that starts this in the background has it ignored.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
if __name__ == "__main__":
    # While there is nothing to stop, a signal ends this process, and Python has nothing to say about it.
    for name in STOP_SIGNALS:
        signal.signal(name, signal.SIG_DFL)

from config.local.location import OddPort, port, var_dir  # noqa: E402
from config.local.product import CannotStart, Product, say_at_once  # noqa: E402
from config.local.program import ProgramFailed, StopAsked  # noqa: E402
from config.local.state import RunFolder  # noqa: E402

OTHER_START_TIMEOUT_S = 600.0


def main() -> int:
    folder = RunFolder(var_dir())
    if folder.is_taken():
        return join_running(folder)
    try:
        product = Product(var_dir=var_dir(), port=port(), given=os.environ)
    except OddPort as error:
        print(error, file=sys.stderr)
        return 2
    on_stop_signals(product.request_stop)
    say_at_once(f"Starting; the state is kept in {product.var_dir}")
    try:
        product.start()
        say_at_once(banner(product))
        product.watch()
    except (CannotStart, ProgramFailed) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except StopAsked:
        pass
    say_at_once("\nStopping")
    product.stop()
    say_at_once("Stopped; start again with: make up")
    return 0


def on_stop_signals(request_stop: Callable[[], None]) -> None:
    """Ask for the stop, and no more: an exception out of a handler could come in the middle of anything, a lock too.

    A second signal changes nothing, so that an impatient Ctrl-C leaves nothing half stopped.
    """
    for name in STOP_SIGNALS:
        signal.signal(name, lambda number, frame: request_stop())


def banner(product: Product) -> str:
    return "\n".join(
        [
            "",
            f"  Portal        {product.plan.portal_url}",
            f"  API base URL  {product.plan.api_url}",
            f"  Logs          {product.var_dir / 'logs'}",
            "  Demo key      make demo-key",
            "  Stop          Ctrl-C here, or make down in another shell",
            "",
            product.ready_line,
        ]
    )


def join_running(folder: RunFolder) -> int:
    """Somebody runs it already: wait until that one is ready and say where it is."""
    deadline = time.monotonic() + OTHER_START_TIMEOUT_S
    while folder.is_taken() and time.monotonic() < deadline:
        state = folder.read_state()
        if state is not None and state.is_ready:
            print(f"Already running (process {state.supervisor_pid}); stop it with: make down")
            print(state.ready_line)
            return 0
        time.sleep(0.2)
    print("The product that was being started here did not become ready.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
