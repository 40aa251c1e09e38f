"""The operator's page about what is kept how long, and which months of usage records would go."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from billing.usage.partitions import retired_months
from portal import access
from portal.operator import selectors as operator
from portal.pages import operator_page
from portal.retention import kept


@login_required
def page(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    context = {
        "kinds": kept(),
        "months": settings.USAGE_RETENTION_MONTHS,
        "partitions": operator.old_partitions(),
        "retired": retired_months(),
    }
    return operator_page(request, "operator_retention", "portal/operator/retention.html", context)
