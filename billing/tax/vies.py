"""The European Commission's register of VAT numbers (VIES), over its REST interface."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TIMEOUT_S = 10
# An answer is a few hundred bytes; more is not one.
_LIMIT_BYTES = 65_536


class RegisterUnavailable(Exception):
    """It did not answer, or a member's own register behind it did not: ask again later."""


@dataclass(frozen=True)
class Answer:
    is_valid: bool
    # What the register says of the number's holder, where its country publishes that.
    name: str
    # The register's own id of the question, a proof that it was asked; empty where the asker gave no number of theirs.
    consultation: str


class ViesClient:
    """`url` is up to and with `/rest-api`. `asker` is the issuer's own number: the answer then names a consultation."""

    def __init__(self, url: str, *, asker: str = "") -> None:
        self._url = url.rstrip("/")
        self._asker = asker

    def check(self, vat_number: str) -> Answer:
        """A number with its prefix, e.g. DE136695976. Raises RegisterUnavailable."""
        body = {"countryCode": vat_number[:2], "vatNumber": vat_number[2:]}
        if self._asker:
            body |= {"requesterMemberStateCode": self._asker[:2], "requesterNumber": self._asker[2:]}
        request = Request(
            f"{self._url}/check-vat-number",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                found = json.loads(answer.read(_LIMIT_BYTES))
        except HTTPError as error:
            raise RegisterUnavailable(f"status {error.code}") from error
        except (URLError, TimeoutError, ValueError) as error:
            raise RegisterUnavailable(str(error)) from error
        # A register that is away answers 200 with an error in place of a verdict.
        if not isinstance(found, dict) or not isinstance(found.get("valid"), bool) or found.get("errorWrappers"):
            raise RegisterUnavailable(str(found)[:200])
        name, consultation = str(found.get("name") or ""), str(found.get("requestIdentifier") or "")
        # Countries that publish no names say "---".
        return Answer(found["valid"], "" if set(name) <= {"-"} else name[:200], consultation[:64])
