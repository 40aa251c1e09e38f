"""Where scripted faults meet the server, which acts on them; the scripted engine only orders them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

ReceiptFault = Literal["drop"] | int  # no receipt, or so many completion tokens more (less, when negative) than true


@dataclass(slots=True)
class Faults:
    receipts: dict[str, ReceiptFault] = field(default_factory=dict)  # by request id; taken out when used
    break_session: Callable[[int], object] = lambda key: None  # set by the server; thread-safe
