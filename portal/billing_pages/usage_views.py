"""Usage: sums over time, and every request. Reads billing's selectors only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect

from billing.pricing import selectors as pricing
from billing.reconciliation.selectors import receipt_of
from billing.usage import selectors as usage
from billing.usage.selectors import UsageFilters
from portal import access
from portal.api_keys import selectors as api_keys
from portal.billing_pages import periods, usage_charts
from portal.billing_pages.figures import figures
from portal.billing_pages.forms import UsageFilterForm, UsageOnlyForm
from portal.catalog.selectors import find_model
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization
from portal.pages import member_page
from portal.quotas.refusals import reason_of

PROTOCOLS = {"chat": "Chat Completions", "completions": "Completions", "responses": "Responses", "messages": "Messages"}
GROUPS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class GroupRow:
    label: str
    # As the page's filter of this group takes it; empty where nothing can be filtered by.
    key: str
    sums: usage.UsageSum
    share: float  # of the cost, or of the requests while nothing costs


@login_required
def overview(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    organization = member.organization
    days = usage_charts.read_days(request.GET)
    period = periods.last_days(days)
    group = request.GET.get("group", "model")
    group = group if group in usage_charts.GROUPS else "model"
    form = UsageOnlyForm(request.GET, organization=organization, projects=organizations.projects_of(organization))
    only = form.only()
    ranking = usage.ranking(organization.id, *period, group, limit=GROUPS_SHOWN, only=only)
    total = periods.totals([*ranking.rows, *([ranking.rest] if ranking.rest else [])])
    filters = UsageFilters(
        project_id=only.project_id,
        api_key_id=only.api_key_id,
        model=only.model,
        end_user=only.end_user,
        start=period.start,
    )
    latest = usage.usage_page(organization.id, filters=filters, limit=8).rows
    context = {
        "form": form,
        "is_filtered": form.is_filtered(),
        "only": form.query(),
        "figures": figures(organization.id, period, only),
        "days": days,
        "ranges": periods.RANGES,
        "groups": usage_charts.GROUPS,
        "group": group,
        "group_label": usage_charts.GROUPS[group],
        "chart": usage_charts.card(request.GET, only=form.query()),
        "rest": _rest_row(ranking, total),
        "rows": _group_rows(organization, group, ranking.rows, total),
        "total": total,
        "latest": latest,
        "key_names": api_keys.names_by_id(organization.id, (row.api_key_id for row in latest)),
    }
    return member_page(request, member, "usage", "portal/usage/overview.html", context)


def _group_rows(
    organization: Organization, group: usage_charts.Group, rows: list[usage.UsageSum], total: usage.UsageSum
) -> list[GroupRow]:
    labels = usage_charts.labels_of(organization, group, [row.key for row in rows])
    labelled = [GroupRow(labels[row.key], row.key, row, _share(row, total)) for row in rows]
    return sorted(labelled, key=lambda row: (-row.share, row.label))


def _rest_row(ranking: usage.Ranking, total: usage.UsageSum) -> GroupRow | None:
    """All groups that are not shown by themselves."""
    if ranking.rest is None:
        return None
    return GroupRow(usage_charts.others(ranking.rest_count), "", ranking.rest, _share(ranking.rest, total))


def _share(row: usage.UsageSum, total: usage.UsageSum) -> float:
    if total.cost_nano:
        return row.cost_nano / total.cost_nano
    return row.requests / total.requests if total.requests else 0.0


@login_required
def requests(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    projects = organizations.projects_of(member.organization)
    form = UsageFilterForm(request.GET, organization=member.organization, projects=projects)
    wanted = request.GET.get("request_id", "").strip()
    if (found := _request_of(member.organization_id, wanted)) is not None:
        return redirect("portal:request", slug, found)
    after = request.GET.get("after") or None
    try:
        page = usage.usage_page(member.organization_id, filters=form.filters(), after=after, limit=50)
    except ValueError as error:
        raise Http404(str(error)) from error
    context = {
        "form": form,
        "page": page,
        "after": after,
        "key_names": api_keys.names_by_id(member.organization_id, (row.api_key_id for row in page.rows)),
        "is_filtered": form.is_filtered(),
        "only": form.query(),
        "wanted": wanted,
    }
    return member_page(request, member, "usage", "portal/usage/requests.html", context)


def _request_of(organization_id: int, text: str) -> UUID | None:
    """The organization's request of that id, in whatever form a client or a log printed it; None if there is none."""
    with suppress(ValueError):
        request_id = UUID(
            text.removeprefix("chatcmpl-").removeprefix("resp_").removeprefix("msg_").removeprefix("cmpl-")
        )
        return request_id if usage.record(organization_id, request_id) else None
    return None


@login_required
def request_detail(request: HttpRequest, slug: str, request_id: UUID) -> HttpResponse:
    member = access.member_for(request.user, slug)
    detail = usage.record(member.organization_id, request_id)
    if detail is None:
        raise Http404("No such request.")
    record = detail.record
    price = pricing.price_by_id(record.price_id) if record.price_id else None
    project = next((p for p in organizations.projects_of(member.organization) if p.id == record.project_id), None)
    attempts = usage.attempts_of(member.organization_id, request_id)
    context = {
        "detail": detail,
        "record": record,
        "attempts": attempts if len(attempts) > 1 else [],
        "reason": reason_of(record.error_code) if record.status == "failed" else None,
        "receipt": receipt_of(member.organization_id, request_id),
        "protocol": PROTOCOLS.get(record.protocol, record.protocol),
        "price": price,
        "model": find_model(record.model),
        "cached_price_nano": _cached_price_nano(price),
        "fresh_tokens": record.prompt_tokens - record.cached_tokens - record.cache_write_tokens,
        "answer_tokens": record.completion_tokens - record.reasoning_tokens,
        "key_name": api_keys.names_by_id(member.organization_id, [record.api_key_id]).get(record.api_key_id or 0),
        "project": project,
        "timing": _timing(record.ttft_ms, record.duration_ms, record.completion_tokens),
    }
    return member_page(request, member, "usage", "portal/usage/request.html", context)


def _cached_price_nano(price: pricing.PriceInfo | None) -> int | None:
    """An unset price of cached input is that of input."""
    if price is None:
        return None
    return price.input_nano if price.cached_input_nano is None else price.cached_input_nano


@dataclass(frozen=True, slots=True)
class Timing:
    """Per mille of the duration that passed before the first token, the time after it, and the speed then."""

    wait: int
    write: int
    writing_ms: float
    tokens_per_s: float | None


def _timing(ttft_ms: float | None, duration_ms: float | None, completion_tokens: int) -> Timing | None:
    if not duration_ms or ttft_ms is None:
        return None
    wait = min(1000, round(1000 * ttft_ms / duration_ms))
    writing_ms = max(0.0, duration_ms - ttft_ms)
    speed = (completion_tokens - 1) / writing_ms * 1000 if completion_tokens > 1 and writing_ms > 0 else None
    return Timing(wait, 1000 - wait, writing_ms, speed)
