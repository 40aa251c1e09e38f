"""kill -9 of one program of the product after the other, spread over the calls, each followed by its return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.drill.caller import Load
from tests.end_to_end.stack import Stack

# In turn: what holds tokens, what holds money, what holds limits, what reconciles.
VICTIMS = ("engine", "web", "postgres", "valkey", "worker")
# PostgreSQL killed, and kept from coming back for a while.
OUTAGE = "postgres, kept away"


# On a busy machine a program takes its time to come back; longer than this, something is wrong.
BACK_TIMEOUT_S = 240.0


@dataclass
class Fault:
    victim: str
    at_call: int
    # Unix time of the kill and of the return.
    began: float = 0.0
    ended: float = 0.0

    @property
    def back_after_s(self) -> float:
        return self.ended - self.began


@dataclass
class Faults:
    stack: Stack
    load: Load
    rounds: int
    outage_s: float
    done: list[Fault] = field(default_factory=list)

    def plan(self) -> Iterable[Fault]:
        """Evenly over the calls, none in the first or last twentieth: what came before and after is counted too."""
        victims = [*VICTIMS * self.rounds, *([OUTAGE] if self.outage_s else [])]
        for number, victim in enumerate(victims):
            share = 0.05 + 0.9 * number / len(victims)
            yield Fault(victim, int(share * self.load.calls))

    async def run(self) -> None:
        for fault in self.plan():
            await self.load.reached(fault.at_call)
            # An earlier fault may have ended this program too, and a program that is not there cannot be killed.
            name = fault.victim.partition(",")[0]
            await asyncio.to_thread(self.stack.await_successor, name, 0, BACK_TIMEOUT_S)
            fault.began = time.time()
            if fault.victim == OUTAGE:
                await self._keep_postgres_away()
            else:
                await asyncio.to_thread(self._kill, fault.victim)
            fault.ended = time.time()
            self.done.append(fault)
            print(f"  call {fault.at_call:,}: {fault.victim} killed, back after {fault.back_after_s:.1f} s", flush=True)

    def _kill(self, name: str) -> None:
        self.stack.await_successor(name, self.stack.kill(name), BACK_TIMEOUT_S)

    async def _keep_postgres_away(self) -> None:
        """Without this file the server does not start, however often its supervisor tries."""
        control = self.stack.var_dir / "postgres" / "global" / "pg_control"
        hidden = control.with_suffix(".hidden")
        await asyncio.to_thread(control.rename, hidden)
        old_pid = await asyncio.to_thread(self.stack.kill, "postgres")
        await asyncio.sleep(self.outage_s)
        await asyncio.to_thread(hidden.rename, control)
        await asyncio.to_thread(self.stack.await_successor, "postgres", old_pid, BACK_TIMEOUT_S)
