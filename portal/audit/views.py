"""What happened in an organization, newest first, as a page and as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from billing.accounts.selectors import account_of
from portal import access
from portal.audit import selectors
from portal.audit.forms import AuditFilterForm
from portal.audit.wording import describe
from portal.csv_stream import csv_response
from portal.organizations.models import Organization
from portal.pages import member_page
from portal.permissions import Permission

PAGE_SIZE = 50
COLUMNS = [
    "id", "time_utc", "who", "through", "action", "subject_type", "subject_id", "subject", "before", "after", "reason",
    "address", "user_agent", "organization",
]  # fmt: skip


@login_required
def audit(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.VIEW_AUDIT)
    form = AuditFilterForm(request.GET or None)
    before = request.GET.get("before", "")
    page = selectors.event_page(
        member.organization,
        form.filters(member.organization.time_zone),
        after=int(before) if before.isdigit() else None,
        limit=PAGE_SIZE,
    )
    currency = account_of(member.organization_id).currency
    context = {
        "form": form,
        "rows": [describe(event, currency) for event in page.rows],
        "next": page.next,
        "before": before,
        "is_filtered": any(request.GET.get(name) for name in form.fields),
    }
    return member_page(request, member, "audit", "portal/audit/list.html", context)


@login_required
def export(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Everything that the filters leave, oldest last; streamed."""
    member = access.member_for(request.user, slug, Permission.VIEW_AUDIT)
    return file_response(
        request, member.organization, AuditFilterForm(request.GET or None).filters(member.organization.time_zone)
    )


def file_response(
    request: HttpRequest, organization: Organization | None, filters: selectors.EventFilters
) -> HttpResponseBase:
    """The events as CSV, streamed; None: of the whole service."""
    name = f"audit-{organization.slug if organization else 'service'}.csv"
    return csv_response(request, name=name, header=COLUMNS, rows=_rows(organization, filters))


def _rows(organization: Organization | None, filters: selectors.EventFilters) -> Iterator[list[object]]:
    for event in selectors.all_events(organization, filters):
        yield [
            event.id,
            f"{event.created_at:%Y-%m-%d %H:%M:%S}",
            event.actor_label,
            event.credential,
            event.action,
            event.subject_type,
            event.subject_id,
            event.subject_label,
            json.dumps(event.before) if event.before else "",
            json.dumps(event.after) if event.after else "",
            event.reason,
            event.address,
            event.user_agent,
            event.organization.slug if event.organization else "",
        ]
