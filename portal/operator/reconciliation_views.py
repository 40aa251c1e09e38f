"""The operator's page about reconciliation: match rates, mismatches, and the closing of months."""

from __future__ import annotations

import csv
from dataclasses import fields
from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.errors import InvalidPeriod, PeriodOpen, PeriodUnmatched
from billing.reconciliation import periods, selectors
from portal import access
from portal.operator import rows, services
from portal.operator import selectors as operator
from portal.operator.forms import PeriodForm
from portal.pages import operator_page

MISMATCHES_SHOWN = 50


@login_required
def reconciliation(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    now = timezone.now()
    last_month = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"
    found = operator.reconciled(now)
    state = periods.period_state(last_month)
    page = Paginator(found.mismatches, MISMATCHES_SHOWN).get_page(request.GET.get("page"))
    context = {
        **{each.name: getattr(found, each.name) for each in fields(found)},
        "page": page,
        "mismatches": operator.mismatch_rows(list(page)),
        "rates": found.days,
        "days": operator.RECONCILIATION_DAYS,
        "most": operator.ORGANIZATIONS_SHOWN,
        "closes": periods.closes(),
        "state": state,
        # What is closed is not proposed: an older month may still be.
        "period_form": PeriodForm(initial={} if state.is_closed else {"period": last_month}),
        "month": f"{now:%Y-%m}",
    }
    return operator_page(request, "operator_reconciliation", "portal/operator/reconciliation.html", context)


@login_required
def call(request: HttpRequest, request_id: UUID) -> HttpResponse:
    """Both accounts of one call, its difference, and each correction."""
    access.require_operator(request.user)
    row = rows.compared_call(request_id)
    context = {"row": row, "tenant": row.organization}
    return operator_page(request, "operator_reconciliation", "portal/operator/call.html", context)


@login_required
def rates_csv(request: HttpRequest) -> HttpResponse:
    """The match rates of a month, the present one unless asked for another: a row for each day and tenant."""
    access.require_operator(request.user)
    form = PeriodForm({"period": request.GET.get("period", f"{timezone.now():%Y-%m}")})
    if not form.is_valid():
        return HttpResponse("Name a month: ?period=YYYY-MM", status=400, content_type="text/plain")
    return rates_response(form.cleaned_data["period"])


def rates_response(period: str) -> HttpResponse:
    """The match rates of a month as CSV."""
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
        services.close_period(period=form.cleaned_data["period"], waiver=form.cleaned_data["waiver"], actor=actor)
    except (InvalidPeriod, PeriodOpen, PeriodUnmatched) as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("%(period)s is closed.") % {"period": form.cleaned_data["period"]})
    return redirect("portal:operator_reconciliation")
