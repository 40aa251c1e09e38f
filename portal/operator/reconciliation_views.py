"""The operator's page about reconciliation: match rates, mismatches, and the closing of months."""

from __future__ import annotations

import csv
from datetime import timedelta

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.errors import InvalidPeriod, PeriodOpen, PeriodUnmatched
from billing.reconciliation import periods, selectors
from portal import access
from portal.audit.services import record_event
from portal.operator.forms import PeriodForm
from portal.organizations import selectors as organizations
from portal.pages import operator_page
from portal.users.models import User

DAYS_SHOWN = 14
ORGANIZATIONS_SHOWN = 50


@login_required
def reconciliation(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    now = timezone.now()
    start = now - timedelta(days=DAYS_SHOWN)
    days = selectors.day_rates(start, now)
    differing = selectors.organization_rates(start, now, limit=ORGANIZATIONS_SHOWN)
    found = selectors.mismatches(start, now, now=now)
    ids = {rate.organization_id for rate in differing} | {mismatch.organization_id for mismatch in found}
    by_id = organizations.organizations_by_id(sorted(number for number in ids if number))
    total = sum(rate.total for rate in days)
    open_count = sum(rate.unmatched for rate in days)
    last_month = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"
    context = {
        "rates": list(reversed(days)),
        "differing": [(rate, by_id.get(rate.organization_id or 0)) for rate in differing],
        "mismatches": [(row, by_id.get(row.organization_id or 0)) for row in found],
        "total": total,
        "raw": sum(rate.equal for rate in days) / total if total else None,
        "repaired": (total - open_count) / total if total else None,
        "open_count": open_count,
        "days": DAYS_SHOWN,
        "most": ORGANIZATIONS_SHOWN,
        "closes": periods.closes(),
        "state": periods.period_state(last_month),
        "period_form": PeriodForm(initial={"period": last_month}),
        "month": f"{now:%Y-%m}",
    }
    return operator_page(request, "operator_reconciliation", "portal/operator/reconciliation.html", context)


@login_required
def rates_csv(request: HttpRequest) -> HttpResponse:
    """The match rates of a month, the present one unless asked for another: a row for each day and tenant."""
    access.require_operator(request.user)
    form = PeriodForm({"period": request.GET.get("period", f"{timezone.now():%Y-%m}")})
    if not form.is_valid():
        return HttpResponse("Name a month: ?period=YYYY-MM", status=400, content_type="text/plain")
    period = form.cleaned_data["period"]
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="reconciliation-{period}.csv"'
    writer = csv.writer(response)
    writer.writerow(periods.CSV_HEADER)
    writer.writerows(map(periods.csv_row, selectors.match_rates(*periods.bounds_of(period))))
    return response


@login_required
@require_POST
def close(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form = PeriodForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Enter a month as YYYY-MM, and a reason of at most 500 characters."))
        return redirect("portal:operator_reconciliation")
    try:
        _close(form.cleaned_data["period"], form.cleaned_data["waiver"], actor)
    except (InvalidPeriod, PeriodOpen, PeriodUnmatched) as error:
        messages.error(request, str(error))
    else:
        messages.success(request, f"{form.cleaned_data['period']} is closed.")
    return redirect("portal:operator_reconciliation")


@transaction.atomic
def _close(period: str, waiver: str, actor: User) -> None:
    """Close and audit in one; a month that was closed before is left as it is."""
    now = timezone.now()
    closed = periods.close_period(
        period=period, actor_id=actor.id, actor_name=f"{actor.name} <{actor.email}>", waiver=waiver, now=now
    )
    if closed.closed_at == now:
        record_event(
            organization_id=None,
            actor=actor,
            action="period.closed",
            subject=closed,
            after={"calls": closed.calls, "equal": closed.equal, "unmatched": closed.unmatched},
            reason=closed.waiver,
        )
