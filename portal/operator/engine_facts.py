"""What an engine last said of itself (portal/catalog/status.py), in the reader's language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.catalog.status import Fact
from portal.templatetags.portal import count, percent_short

PLAIN: dict[str, str | Promise] = {
    "model": gettext_lazy("Model"),
    "engine": gettext_lazy("Engine"),
    "version": gettext_lazy("Version"),
    "device": gettext_lazy("Device"),
    "precision": gettext_lazy("Precision"),
}


def told(facts: Mapping[str, Fact]) -> list[tuple[str, str]]:
    """Pairs of name and value; nothing of a deployment that did not answer."""
    if not facts:
        return []
    counts = {name: count(value) for name, value in facts.items() if isinstance(value, int)}
    return [
        *((str(label), str(facts[name])) for name, label in PLAIN.items()),
        (_("Draft head"), _draft_head(facts)),
        (_("Context"), _("%(context_tokens)s tokens") % counts),
        (_("Running"), _("%(running)s of %(max_sequences)s") % counts),
        (_("Waiting"), counts["waiting"]),
        (_("Pages in use"), _("%(pages_used)s of %(pages_total)s, %(page_tokens)s tokens each") % counts),
        *_three_bit_pages(facts, counts),
        (_("Prompt tokens"), _("%(prompt_tokens)s, %(reused_tokens)s of them reused") % counts),
        (_("Output tokens"), counts["output_tokens"]),
    ]


def _three_bit_pages(facts: Mapping[str, Fact], counts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Of a KV cache in two stages, whose other pages are in FP8."""
    if not facts.get("three_bit_pages_total"):
        return []
    return [(_("Pages in three bits"), _("%(three_bit_pages_used)s of %(three_bit_pages_total)s") % counts)]


def _draft_head(facts: Mapping[str, Any]) -> str:
    """With the share of drafts that were right, in all and by their position in a step."""
    if not facts["drafted_tokens"]:
        return _("none") if facts["draft_head"] in ("", "none") else str(facts["draft_head"])
    pairs = zip(facts["accepted_by_position"], facts["drafted_by_position"], strict=False)
    return _("%(head)s; %(share)s of %(drafts)s drafts accepted, by position %(by_position)s") % {
        "head": facts["draft_head"],
        "share": percent_short(facts["accepted_tokens"] / facts["drafted_tokens"]),
        "drafts": count(facts["drafted_tokens"]),
        "by_position": "; ".join(percent_short(accepted / drafted) for accepted, drafted in pairs if drafted),
    }
