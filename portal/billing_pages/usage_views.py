"""Usage: sums over time, and every request. Reads billing's selectors only."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.ledger import selectors as ledger
from billing.pricing import selectors as pricing
from billing.rollups import service
from billing.rollups.histograms import Latency
from billing.rollups.models import DAY_S, HOUR_S
from billing.rollups.service import ServiceFilters
from billing.usage import selectors as usage
from portal import access
from portal.api_keys import selectors as api_keys
from portal.billing_pages import periods
from portal.billing_pages.forms import UsageFilterForm
from portal.organizations import selectors as organizations
from portal.organizations.models import Organization
from portal.pages import member_page

PROTOCOLS = {"chat": "Chat Completions", "completions": "Completions", "responses": "Responses", "messages": "Messages"}
GROUPS = {"model": _("Model"), "api_key": _("API key"), "project": _("Project"), "end_user": _("End user")}
GROUPS_SHOWN = 100
METRICS = {"tokens": _("Tokens"), "spend": _("Spend"), "requests": _("Requests")}


@dataclass(frozen=True, slots=True)
class GroupRow:
    label: str
    sums: usage.UsageSum
    share: float  # of the cost, or of the requests while nothing costs


def _days(request: HttpRequest) -> int:
    days = request.GET.get("days", "")
    return int(days) if days.isdigit() and int(days) in periods.RANGES else periods.DEFAULT_RANGE


@login_required
def overview(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    days = _days(request)
    period = periods.last_days(days)
    group = request.GET.get("group", "model")
    group = group if group in GROUPS else "model"
    ranking = usage.ranking(member.organization_id, period.start, period.end, group, limit=GROUPS_SHOWN)
    rows = ranking.rows
    total = periods.totals([*rows, *([ranking.rest] if ranking.rest else [])])
    latest = usage.usage_page(member.organization_id, limit=8).rows
    # By whole hours or days; a few seconds behind.
    grain_s = DAY_S if days > 7 else HOUR_S
    served = service.total(
        ServiceFilters(organization_id=member.organization_id), period.start, period.end, grain_s=grain_s
    )
    failed = sum(served.failed.values())
    context = {
        "failed": failed,
        "failed_share": failed / served.requests if served.requests else 0.0,
        "cancelled": served.cancelled,
        "ttft_ms": [served.percentile_ms(Latency.TTFT, percent) for percent in (50, 95)],
        "e2e_ms": [served.percentile_ms(Latency.E2E, percent) for percent in (50, 95)],
        "days": days,
        "ranges": periods.RANGES,
        "groups": GROUPS,
        "group": group,
        "group_label": GROUPS[group],
        "metrics": METRICS,
        "metric": request.GET.get("metric", "tokens"),
        "rest": _rest_row(ranking, total),
        "rows": _group_rows(member.organization, group, rows, total),
        "total": total,
        "latest": latest,
        "key_names": api_keys.names_by_id(member.organization_id, (row.api_key_id for row in latest)),
    }
    return member_page(request, member, "usage", "portal/usage/overview.html", context)


def _group_rows(
    organization: Organization, group: str, rows: list[usage.UsageSum], total: usage.UsageSum
) -> list[GroupRow]:
    names: dict[str, str] = {}
    if group == "api_key":
        found = api_keys.names_by_id(organization.id, (int(row.key) for row in rows if row.key))
        names = {str(key_id): name for key_id, name in found.items()}
    elif group == "project":
        names = {str(project.id): project.name for project in organizations.projects_of(organization)}

    labelled = [GroupRow(names.get(row.key, row.key) or "none", row, _share(row, total)) for row in rows]
    return sorted(labelled, key=lambda row: (-row.share, row.label))


def _rest_row(ranking: usage.Ranking, total: usage.UsageSum) -> GroupRow | None:
    """All groups that are not shown by themselves."""
    if ranking.rest is None:
        return None
    return GroupRow(f"{ranking.rest_count:,} others", ranking.rest, _share(ranking.rest, total))


def _share(row: usage.UsageSum, total: usage.UsageSum) -> float:
    if total.cost_nano:
        return row.cost_nano / total.cost_nano
    return row.requests / total.requests if total.requests else 0.0


@login_required
def chart(request: HttpRequest, slug: str) -> JsonResponse:
    """Points of the chart: by hour for a day, else by day, in the reader's zone; gaps are zeros."""
    member = access.member_for(request.user, slug)
    days = _days(request)
    period = periods.last_days(days)
    by = "hour" if days == 1 else "day"
    zone = timezone.get_current_timezone_name()
    sums = {row.key: row for row in usage.summary(member.organization_id, period.start, period.end, by, time_zone=zone)}
    keys = periods.hours_in(period) if by == "hour" else periods.days_in(period)
    rows = [sums.get(key) or usage.UsageSum(key, 0, 0, 0, 0, 0, 0) for key in keys]
    series = {
        "tokens": [
            {"label": str(_("Input")), "values": [row.prompt_tokens - row.cached_tokens for row in rows]},
            {"label": str(_("Cached input")), "values": [row.cached_tokens for row in rows]},
            {"label": str(_("Output")), "values": [row.completion_tokens for row in rows]},
        ],
        # A chart's height may be a float: money itself is printed from whole nano-units elsewhere.
        "spend": [{"label": "Spend", "values": [row.cost_nano / 1e9 for row in rows]}],
        "requests": [{"label": "Requests", "values": [row.requests for row in rows]}],
    }
    metric = request.GET.get("metric", "tokens")
    metric = metric if metric in METRICS else "tokens"
    currency = ledger.balance(member.organization_id).currency
    return JsonResponse({"by": by, "keys": keys, "series": series[metric], "metric": metric, "currency": currency})


@login_required
def requests(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug)
    projects = organizations.projects_of(member.organization)
    form = UsageFilterForm(request.GET, organization=member.organization, projects=projects)
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
    }
    return member_page(request, member, "usage", "portal/usage/requests.html", context)


@login_required
def request_detail(request: HttpRequest, slug: str, request_id: UUID) -> HttpResponse:
    member = access.member_for(request.user, slug)
    detail = usage.record(member.organization_id, request_id)
    if detail is None:
        raise Http404("No such request.")
    record = detail.record
    price = pricing.price_by_id(record.price_id) if record.price_id else None
    project = next((p for p in organizations.projects_of(member.organization) if p.id == record.project_id), None)
    context = {
        "detail": detail,
        "record": record,
        "protocol": PROTOCOLS.get(record.protocol, record.protocol),
        "price": price,
        "cached_price_nano": _cached_price_nano(price),
        "fresh_tokens": record.prompt_tokens - record.cached_tokens,
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
    """Per mille of the duration that passed before the first token, and the speed after it."""

    wait: int
    write: int
    tokens_per_s: float | None


def _timing(ttft_ms: float | None, duration_ms: float | None, completion_tokens: int) -> Timing | None:
    if not duration_ms or ttft_ms is None:
        return None
    wait = min(1000, round(1000 * ttft_ms / duration_ms))
    writing_ms = duration_ms - ttft_ms
    speed = (completion_tokens - 1) / writing_ms * 1000 if completion_tokens > 1 and writing_ms > 0 else None
    return Timing(wait, 1000 - wait, speed)
