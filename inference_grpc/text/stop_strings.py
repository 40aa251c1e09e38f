"""Stop strings across token borders: text is held back for as long as it may still turn into one."""

from __future__ import annotations


class StopStrings:
    """Of one choice. The text before the first stop string to be complete comes out, whatever the chunks."""

    def __init__(self, stops: list[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What is safe to show now. After a match nothing more comes."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = self._first_complete(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        """Where the stop string that is complete first begins; of two that end together, the longer."""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
