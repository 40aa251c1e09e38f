"""What happened in an organization, newest first."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from portal import access
from portal.audit import selectors
from portal.pages import member_page

PAGE_SIZE = 50


@login_required
def audit(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    before = request.GET.get("before", "")
    events = selectors.events_of(member.organization)
    if before.isdigit():
        events = events.filter(id__lt=int(before))
    rows = list(events[: PAGE_SIZE + 1])
    context = {
        "rows": [selectors.describe(event) for event in rows[:PAGE_SIZE]],
        "next": rows[PAGE_SIZE - 1].id if len(rows) > PAGE_SIZE else None,
        "before": before,
    }
    return member_page(request, member, "audit", "portal/audit/list.html", context)
