"""What is watched, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from billing.ledger import selectors as ledger
from portal import access
from portal.alerts import selectors, services
from portal.alerts.evaluation import budget_spent
from portal.alerts.forms import AlertRuleForm
from portal.alerts.kinds import RuleKind
from portal.alerts.models import AlertRule
from portal.alerts.wording import title_of
from portal.api_keys import selectors as api_keys
from portal.errors import PortalError
from portal.gone_rows import told_when_gone
from portal.organizations import selectors as organizations
from portal.organizations.models import Member, Organization
from portal.pages import member_page
from portal.permissions import Permission

# Keys offered in the form: the newest ones.
KEYS_OFFERED = 200


def _form(member: Member, data: Any = None) -> AlertRuleForm:
    organization = member.organization
    return AlertRuleForm(
        data,
        name=organization.name,
        projects=organizations.projects_of(organization),
        api_keys=list(api_keys.client_keys(organization).filter(revoked_at=None)[:KEYS_OFFERED]),
    )


@dataclass(frozen=True, slots=True)
class Watched:
    """A rule and where it stands: what is used of its budget, or the credit there is; None where it sums up nothing."""

    rule: AlertRule
    used_nano: int | None = None
    left_nano: int | None = None

    @property
    def per_mille(self) -> int:
        """Of the budget."""
        return min(1000, 1000 * (self.used_nano or 0) // (self.rule.amount_nano or 1))


def _watched(organization: Organization) -> list[Watched]:
    """One query for each budget."""
    now = timezone.now()
    available = ledger.balance(organization.id, now=now).available_nano
    watched = []
    for rule in selectors.rules_of(organization):
        rule.organization = organization
        watched.append(
            Watched(
                rule,
                used_nano=budget_spent(rule, now) if rule.kind == RuleKind.BUDGET else None,
                left_nano=max(0, available) if rule.kind == RuleKind.CREDIT else None,
            )
        )
    return watched


def _page(request: HttpRequest, member: Member, form: AlertRuleForm) -> HttpResponse:
    before = request.GET.get("before", "")
    rows, following = selectors.alerts_page(member.organization, after=int(before) if before.isdigit() else None)
    context = {
        "form": form,
        "watched": _watched(member.organization),
        "told": [(alert, title_of(alert)) for alert in rows],
        "next": following,
        "before": before,
        "recipients": services.recipients(member.organization),
    }
    return member_page(
        request, member, "alerts", "portal/alerts/alerts.html", context, status=400 if form.errors else 200
    )


@login_required
def alerts(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.VIEW_ALERTS)
    return _page(request, member, _form(member))


@login_required
@require_POST
def rule_new(request: HttpRequest, slug: str) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    form = _form(member, request.POST)
    if form.is_valid():
        try:
            services.create_rule(organization=member.organization, actor=member.user, **form.cleaned_data["rule"])
        except PortalError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("The alert is set and watched from now on."))
            return redirect("portal:alerts", slug)
    return _page(request, member, form)


@login_required
@require_POST
@told_when_gone("alerts", _("This alert is gone already: somebody removed it meanwhile."))
def rule_remove(request: HttpRequest, slug: str, rule_id: int) -> HttpResponse:
    member = access.member_for(request.user, slug, Permission.MANAGE_ALERTS)
    rule = access.alert_rule_for(request.user, slug, rule_id, Permission.MANAGE_ALERTS)
    services.remove_rule(rule=rule, actor=member.user)
    messages.success(request, _("The alert is removed."))
    return redirect("portal:alerts", slug)
