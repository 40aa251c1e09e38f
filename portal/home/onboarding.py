"""The checklist of a new organization, which ticks itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from billing.usage.models import UsageRecord
from portal.api_keys import selectors as api_keys
from portal.organizations.models import Organization

# Who made so many calls needs no list, streamed or not.
CALLS_OF_A_BEGINNER = 6


@dataclass(frozen=True, slots=True)
class Step:
    """`query` is appended to the page's address."""

    title: str
    text: str
    is_done: bool
    action: str = ""
    url_name: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class Checklist:
    steps: list[Step]
    has_key: bool
    # The newest calls, to be seen as they come.
    calls: Sequence[UsageRecord]

    @property
    def is_done(self) -> bool:
        return all(step.is_done for step in self.steps)


def checklist(organization: Organization, latest: Sequence[UsageRecord]) -> Checklist:
    """`latest` are the newest calls, at least CALLS_OF_A_BEGINNER of them if there are so many. One query."""
    has_key = api_keys.client_keys(organization).exists()
    has_streamed = any(row.is_stream and row.ttft_ms is not None for row in latest)
    steps = [
        Step(_("Prove your e-mail address"), _("Done: this is how you sign in."), True),
        Step(
            _("Create an API key"),
            _("It is shown once, with a first call to paste."),
            has_key,
            _("Create a key"),
            "api_keys",
            "?new=1",
        ),
        Step(
            _("Make your first call"),
            _("From your own machine, with any OpenAI or Anthropic client."),
            bool(latest),
            _("Open the quick start"),
            "quickstart",
        ),
        Step(
            _("See tokens arrive live"),
            _("Stream an answer: with stream on in your call, or in the playground."),
            has_streamed or len(latest) >= CALLS_OF_A_BEGINNER,
            _("Open the playground"),
            "playground",
        ),
    ]
    return Checklist(steps, has_key, latest[:3])
