"""Token ids to text, as they come: a character split over tokens is held until it is whole."""

from __future__ import annotations

import codecs

from inference_grpc.text.tokenizer import ModelTokenizer


class Detokenizer:
    """Of one choice. All texts together are the decoded bytes of all tokens; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left of a character that never became whole."""
        return self._decoder.decode(b"", final=True)
