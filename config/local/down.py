"""`make down`: stop the product that another shell runs."""

from __future__ import annotations

import os
import signal
import sys
import time

from config.local.location import var_dir
from config.local.state import RunFolder

TIMEOUT_S = 180.0


def main() -> int:
    folder = RunFolder(var_dir())
    supervisor_pid = folder.supervisor_pid()
    if supervisor_pid is None:
        print("Not running.")
        return 0
    os.kill(supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + TIMEOUT_S
    while folder.is_taken():
        if time.monotonic() > deadline:
            print(f"Process {supervisor_pid} has not stopped within {TIMEOUT_S:.0f} s.", file=sys.stderr)
            return 1
        time.sleep(0.1)
    print("Stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
