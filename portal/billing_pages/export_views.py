"""Exports: asked for, watched, downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from billing.errors import ExportRefused, InvalidPeriod, RecordsRetired
from billing.exports import focus, selectors, services
from billing.exports.models import Export, ExportKind, ExportState
from portal import access
from portal.api_keys import selectors as api_keys
from portal.billing_pages import services as acts
from portal.billing_pages.credit_forms import DIVISION_NAMES, ExportForm
from portal.billing_pages.forms import KEYS_OFFERED
from portal.catalog import selectors as catalog
from portal.csv_stream import file_response
from portal.organizations import selectors as organizations
from portal.organizations.models import Member
from portal.pages import member_page

SHOWN = 50
CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


@login_required
def exports(request: HttpRequest, slug: str) -> HttpResponse:
    """The list and the form; while a file is being made, the list renews itself."""
    member = access.member_for(request.user, slug)
    if request.method == "POST":
        return _ask(request, member)
    return _page(
        request,
        member,
        _form(member, initial={"kind": ExportKind.USAGE.value, "period": f"{timezone.localdate():%Y-%m}"}),
    )


def _form(member: Member, *args: Any, **kwargs: Any) -> ExportForm:
    projects = [(str(project.id), project.name) for project in organizations.projects_of(member.organization)]
    keys = [(str(number), name) for number, name in api_keys.newest_names(member.organization, KEYS_OFFERED)]
    models = [(model.name, model.name) for model in catalog.all_models()]
    return ExportForm(*args, projects=projects, api_keys=keys, models=models, **kwargs)


def _page(request: HttpRequest, member: Member, form: ExportForm) -> HttpResponse:
    now = timezone.now()
    rows = list(selectors.exports_of(member.organization_id)[:SHOWN])
    context = {
        "form": form,
        "rows": [
            Row(row, selectors.is_downloadable(row, now=now), DIVISION_NAMES.get(row.group_by, ""), _failure(row))
            for row in rows
        ],
        "kept_days": settings.EXPORT_RETENTION_DAYS,
        "is_working": any(not row.is_over for row in rows),
        "focus_version": focus.VERSION,
    }
    is_part = request.headers.get("HX-Request") and not request.headers.get("HX-Boosted")
    template = "portal/billing/_exports.html" if is_part else "portal/billing/exports.html"
    return member_page(request, member, "exports", template, context, status=400 if form.errors else 200)


@dataclass(frozen=True, slots=True)
class Row:
    """An export of the list; `is_there` says whether its file is."""

    export: Export
    is_there: bool
    division: str | Promise
    failure: str


def _failure(export: Export) -> str:
    """Why it could not be made, in the reader's language: the worker that wrote it down has none."""
    if export.state != ExportState.FAILED:
        return ""
    if export.error.startswith("It broke off"):
        return _("It broke off. Make it again; if that fails too, tell the operator.")
    return _("The invoice of %(name)s is not issued yet; use showback until it is, or another month.") % {
        "name": export.period
    }


def _ask(request: HttpRequest, member: Member) -> HttpResponse:
    form = _form(member, request.POST)
    if form.is_valid():
        data = form.cleaned_data
        try:
            acts.request_export(
                organization=member.organization,
                kind=data["kind"],
                file_format=data["file_format"],
                period=data["period"],
                group_by=data["group_by"],
                project_id=int(data["project"]) if data["project"] else None,
                api_key_id=int(data["api_key"]) if data["api_key"] else None,
                model=data["model"],
                end_user=data["end_user"],
                actor=member.user,
            )
        except InvalidPeriod as error:
            form.add_error("period", str(error))
        except (ExportRefused, RecordsRetired) as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("The export is being made; it appears below."))
            return redirect("portal:exports", member.organization.slug)
    return _page(request, member, form)


@login_required
def download(request: HttpRequest, slug: str, export_id: int) -> HttpResponseBase:
    member = access.member_for(request.user, slug)
    found = selectors.find_export(member.organization_id, export_id)
    if found is None:
        raise Http404("No such file.")
    return export_response(request, found)


def export_response(request: HttpRequest, found: Export) -> HttpResponseBase:
    """The file of an export, or 404 when it is not made yet or past its time."""
    if not selectors.is_downloadable(found, now=timezone.now()):
        raise Http404("The file is not ready, or past its time.")
    response = file_response(
        request,
        services.path_of(found).open("rb"),
        name=services.file_name(found),
        content_type=CONTENT_TYPES[found.format],
    )
    response["X-Content-SHA256"] = found.sha256
    if found.kind == ExportKind.FOCUS:
        response["X-FOCUS-Version"] = focus.VERSION
    return response
