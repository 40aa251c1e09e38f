"""The browsers in which a person is signed in, and signing them out."""

from __future__ import annotations

from dataclasses import dataclass

from allauth.usersessions.models import UserSession
from django.db import transaction

from portal.audit.services import record_event
from portal.users.models import User

_BROWSERS = ("Edg", "OPR", "Firefox", "Chrome", "Safari")
_NAMES = {"Edg": "Edge", "OPR": "Opera"}
_SYSTEMS = ("Windows", "Android", "iPhone", "iPad", "Mac OS", "CrOS", "Linux")


@dataclass(frozen=True, slots=True)
class Browser:
    session: UserSession
    name: str
    is_current: bool


def browsers_of(user: User, current_key: str | None) -> list[Browser]:
    """The present one first, then the newest. Sessions that are over are forgotten on the way."""
    sessions = UserSession.objects.purge_and_list(user)
    ordered = sorted(sessions, key=lambda each: (each.session_key != current_key, -each.created_at.timestamp()))
    return [Browser(each, describe(each.user_agent), each.session_key == current_key) for each in ordered]


def describe(user_agent: str) -> str:
    """Firefox on Windows; the text itself where it is none of the known."""
    browser = next((name for name in _BROWSERS if f"{name}/" in user_agent), None)
    system = next((name for name in _SYSTEMS if name in user_agent), None)
    if browser is None:
        return user_agent[:60] or "Unknown program"
    name = _NAMES.get(browser, browser)
    return f"{name} on {system}" if system else name


@transaction.atomic
def end(*, user: User, session_ids: list[int]) -> int:
    """Signs those of the user's browsers out at once; returns how many. A repeat finds none."""
    sessions = list(UserSession.objects.filter(user=user, id__in=session_ids))
    for session in sessions:
        session.end()
        record_event(
            organization_id=None,
            actor=user,
            action="session.ended",
            subject=user,
            label=user.email,
            before={"browser": describe(session.user_agent), "address": session.ip},
        )
    return len(sessions)
