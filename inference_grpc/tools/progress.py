"""How far a command is, for people: one line that is written over on a terminal, a line a tenth elsewhere."""

from __future__ import annotations

import time
from typing import TextIO


class Progress:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._began = time.monotonic()
        self._told = -1

    def step(self, done: int, total: int, what: str) -> None:
        if self._out is None:
            return
        line = f"{done:>6}/{total}  {time.monotonic() - self._began:6.1f} s  {what}"
        if self._out.isatty():
            self._out.write(f"\r\x1b[K{line}" + ("\n" if done == total else ""))
            self._out.flush()
        elif done == total or done * 10 // total > self._told:
            self._told = done * 10 // total
            self._out.write(line + "\n")
