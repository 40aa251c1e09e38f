"""Names of projects, keys and who made these, which billing knows by number only: asked of whoever keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.dispatch import Signal

# Sent with `organization_id`; a receiver answers with Names.
names_wanted = Signal()


@dataclass(frozen=True)
class Names:
    organization: str = ""
    projects: dict[int, str] = field(default_factory=dict)
    api_keys: dict[int, str] = field(default_factory=dict)
    # Who made a key, by the key's id: the person's id and name.
    key_makers: dict[int, tuple[int, str]] = field(default_factory=dict)


def names_of(organization_id: int) -> Names:
    """Empty where nobody answers: files then have numbers alone."""
    for _, answer in names_wanted.send(sender=None, organization_id=organization_id):
        if isinstance(answer, Names):
            return answer
    return Names()
