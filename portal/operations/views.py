"""The operator's pages about how the service runs and what it costs to run."""

from __future__ import annotations

from decimal import Decimal

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal import access
from portal.operations import economics, reasons, selectors
from portal.operations.capacity import Assumptions, compute
from portal.operations.forms import CapacityForm, ViewForm
from portal.organizations.selectors import search_organizations
from portal.pages import operator_page

OPTIONS_SHOWN = 12
GROUP_TITLES = {"model": _("By model"), "deployment": _("By deployment"), "organization": _("By organization")}


@login_required
def operations(request: HttpRequest) -> HttpResponse:
    """The frame: static/js/operations.js fills it from `data` and keeps it fresh over the WebSocket."""
    access.require_operator(request.user)
    form = ViewForm(request.GET)
    form.is_valid()
    filters = form.filters()
    context = {
        "form": form,
        "ranges": selectors.RANGES,
        "range": filters.range,
        "groups": selectors.GROUPS,
        "group": filters.group,
        "group_label": selectors.GROUPS[filters.group],
        "group_title": GROUP_TITLES[filters.group],
        "words": reasons.as_json(),
        "is_filtered": any(form.cleaned_data.get(name) for name in ("model", "deployment", "organization")),
    }
    return operator_page(
        request, "operations", "portal/operations/operations.html", context, status=400 if form.errors else 200
    )


@login_required
def data(request: HttpRequest) -> JsonResponse:
    access.require_operator(request.user)
    form = ViewForm(request.GET)
    if not form.is_valid():
        return JsonResponse({"errors": form.errors.get_json_data()}, status=400)
    return JsonResponse(selectors.view(form.filters(), now=timezone.now()))


@login_required
def organization_options(request: HttpRequest) -> HttpResponse:
    """Organizations whose name or slug begins the way the reader has typed, as options of the filter."""
    access.require_operator(request.user)
    found = search_organizations(request.GET.get("organization", "").strip())[:OPTIONS_SHOWN]
    return render(request, "portal/operations/_organization_options.html", {"organizations": found})


@login_required
def capacity(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    form = CapacityForm(request.GET)
    context: dict[str, object] = {"form": form}
    if form.is_valid():
        given = form.cleaned_data
        terms = {"gpus": given["gpus"], "gpu_hour_nano": form.gpu_hour_nano, "load": form.load_share}
        context["rows"] = economics.by_model(tokens_per_s=given["tokens_per_s"], now=timezone.now(), **terms)
        rates = [rate for rate in (given["compare_with"], given["tokens_per_s"]) if rate]
        context["compared"] = [(rate, compute(Assumptions(rate, **terms))) for rate in rates]
        context["change"] = _change(rates)
    return operator_page(
        request, "capacity", "portal/operations/capacity.html", context, status=400 if form.errors else 200
    )


def _change(rates: list[Decimal]) -> tuple[Decimal, Decimal] | None:
    """By how much the second throughput is above the first, and its GPU time below: in percent."""
    if len(rates) < 2:
        return None
    before, after = rates
    return (after / before - 1) * 100, (1 - before / after) * 100
