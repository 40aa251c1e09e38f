"""Nothing that looks like a key is logged, whoever logs it and however."""

from __future__ import annotations

import io
import logging

import pytest

from portal.api_keys import redaction, secrets
from portal.api_keys.redaction import holds_key, redact


@pytest.mark.parametrize("kind", secrets.Kind)
def test_keys_are_cut_out_and_their_shown_part_stays(kind: secrets.Kind) -> None:
    key = secrets.generate(kind)
    assert redact(f"got {key}, sorry") == f"got {kind}[redacted], sorry"
    assert redact(f"key ({secrets.shown_prefix(key)}…)") == f"key ({secrets.shown_prefix(key)}…)"
    # Mistyped, cut short, in a URL, in JSON.
    for text in (key[:-1], key[:30], f"https://x/?key={key}", f'{{"a":"{key}"}}'):
        assert holds_key(text)
        assert key[20:30] not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.def-123",
        "{'authorization': 'bearer abc.def-123'}",
        "x-api-key: abc.def-123",
        "[(b'x-api-key', b'abc.def-123')]",
        "whsec_abc.def-123abcdefgh",
    ],
)
def test_strangers_credentials_are_cut_out_where_they_stand(text: str) -> None:
    assert "def-123" not in redact(text) or "whsec" in text
    assert redact(redact(text)) == redact(text)


def test_ordinary_text_is_untouched() -> None:
    text = "usage_recorded request_id=0199 sk-tf- bearer of news, the bearer"
    assert redact("usage_recorded request_id=0199 sk-tf-") == "usage_recorded request_id=0199 sk-tf-"
    assert "news" in text


class TestLogRecords:
    @pytest.fixture
    def printed(self) -> io.StringIO:
        """What a handler that knows nothing of keys writes."""
        redaction.install()
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        logger = logging.getLogger("test.redaction")
        logger.propagate = False
        logger.handlers = [handler]
        logger.setLevel("DEBUG")
        return stream

    def test_message_arguments_mapping_and_objects(self, printed: io.StringIO) -> None:
        key = secrets.generate()
        logger = logging.getLogger("test.redaction")
        logger.info(f"in the message {key}")
        logger.info("as argument %s and number %d", key, 7)
        logger.info("by name %(key)s", {"key": key})
        logger.info("an object %s", ValueError(key))
        logger.info("a list %r", [key])
        assert key not in printed.getvalue()
        assert printed.getvalue().count("[redacted]") == 5
        assert "number 7" in printed.getvalue()

    def test_tracebacks_and_their_causes(self, printed: io.StringIO) -> None:
        key = secrets.generate()
        logger = logging.getLogger("test.redaction")
        try:
            try:
                raise KeyError(key)
            except KeyError as error:
                raise RuntimeError("failed") from error
        except RuntimeError:
            logger.exception("it failed")
        assert key not in printed.getvalue()
        assert "RuntimeError: failed" in printed.getvalue()
        assert "sk-tf-[redacted]" in printed.getvalue()
