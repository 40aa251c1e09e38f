"""The operator's audit log: of every organization and of the service itself, as a page and as a file."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from billing.accounts.selectors import currencies_of
from portal import access
from portal.audit import selectors
from portal.audit.forms import ServiceAuditFilterForm
from portal.audit.views import PAGE_SIZE, file_response
from portal.audit.wording import describe
from portal.pages import operator_page


@login_required
def audit(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    form = ServiceAuditFilterForm(request.GET)
    filters = form.filters("UTC")
    before = request.GET.get("before", "")
    page = selectors.event_page(
        form.cleaned_data.get("organization"),
        filters,
        after=int(before) if before.isdigit() else None,
        limit=PAGE_SIZE,
    )
    currencies = currencies_of({event.organization_id for event in page.rows if event.organization_id})
    context = {
        "form": form,
        "rows": [describe(event, currencies.get(event.organization_id or 0, "USD")) for event in page.rows],
        "next": page.next,
        "before": before,
        "is_filtered": any(request.GET.get(name) for name in form.fields),
    }
    return operator_page(
        request, "operator_audit", "portal/operator/audit.html", context, status=400 if form.errors else 200
    )


@login_required
def export(request: HttpRequest) -> HttpResponseBase:
    """Everything that the filters leave, oldest last; streamed. A filter that cannot be read gets no file."""
    access.require_operator(request.user)
    form = ServiceAuditFilterForm(request.GET)
    filters = form.filters("UTC")
    if form.errors:
        return HttpResponse("A filter cannot be read.", status=400, content_type="text/plain")
    return file_response(request, form.cleaned_data.get("organization"), filters)
