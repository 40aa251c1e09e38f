"""Two admins with the same form open: the last write holds, and the audit log has both, each with what it replaced.

What one removed, the other cannot remove again, and reads so on the list. A price asks first: money hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from billing.pricing.selectors import newest_id, price_history
from portal.alerts import webhooks
from portal.alerts.models import WebhookEndpoint
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog.models import Model
from portal.organizations.invitations import invite
from portal.organizations.models import Invitation, Member
from portal.organizations.roles import Role
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import Cast

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
LIMIT = {"scope": "", "what": "tokens:day", "model": "", "mode": "hard"}


@pytest.fixture
def addresses(cast: Cast, model: Model, settings: Any) -> dict[str, str]:
    """Of what can be changed, the address of its form."""
    settings.WEBHOOK_ALLOW_PRIVATE = True
    hook = webhooks.add(organization=cast.organization, url="http://127.0.0.1:9/a", description="", actor=cast.ada)
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    rows = {
        "limits": [],
        "member_role": [Member.objects.get(user=cast.ben).id],
        "webhook_change": [hook.endpoint.id],
        "api_key": [key.id],
        "project_rename": [cast.project.slug],
        "settings": [],
    }
    return {name: reverse(f"portal:{name}", args=[cast.organization.slug, *row]) for name, row in rows.items()}


@pytest.mark.parametrize(
    ("name", "field", "others"),
    [
        ("limits", "amount", LIMIT),
        ("webhook_change", "description", {"url": "http://127.0.0.1:9/a", "is_enabled": "on"}),
        ("api_key", "name", {}),
        ("project_rename", "name", {}),
        ("settings", "name", {"time_zone": "UTC"}),
    ],
)
def test_the_last_write_holds_and_both_are_on_record(
    name: str, field: str, others: dict[str, str], addresses: dict[str, str], cast: Cast, signed_in: Browser
) -> None:
    for who, value in ((cast.ada, "1001"), (cast.dee, "1002")):
        answer = signed_in(who).post(addresses[name], {**others, field: value})
        assert answer.status_code == 302, answer.content.decode()
    first, second = AuditEvent.objects.filter(organization=cast.organization).order_by("id")[::1][-2:]
    assert (first.actor, second.actor) == (cast.ada, cast.dee)
    changed = {key for key, value in second.after.items() if second.before.get(key) != value}
    assert changed
    assert {key: second.before[key] for key in changed} == {key: first.after[key] for key in changed}
    assert "1002" in {str(second.after[key]) for key in changed}


def test_a_role_that_two_change_is_the_later_one(addresses: dict[str, str], cast: Cast, signed_in: Browser) -> None:
    for who, role in ((cast.ada, "billing"), (cast.dee, "viewer")):
        assert signed_in(who).post(addresses["member_role"], {"role": role}).status_code == 302
    events = AuditEvent.objects.filter(action="member.role_changed").order_by("id")
    assert [(event.before["role"], event.after["role"]) for event in events] == [
        ("developer", "billing"),
        ("billing", "viewer"),
    ]


@pytest.mark.parametrize(
    ("name", "page", "text"),
    [
        ("limit_remove", "limits", "This limit is gone already"),
        ("webhook_remove", "webhooks", "This webhook is gone already"),
        ("member_remove", "members", "This person is a member no more"),
        ("invitation_withdraw", "members", "This invitation is open no longer"),
    ],
)
def test_what_a_colleague_removed_is_told_on_the_list(
    name: str, page: str, text: str, addresses: dict[str, str], cast: Cast, signed_in: Browser
) -> None:
    change_quota(organization=cast.organization, kind=QuotaKind.TOKENS, window=Window.DAY, limit=1000, actor=cast.ada)
    invite(organization=cast.organization, email="eve@example.com", role=Role.VIEWER, actor=cast.ada)
    row_id = {
        "limit_remove": Quota.objects.get().id,
        "webhook_remove": WebhookEndpoint.objects.get().id,
        "member_remove": Member.objects.get(user=cast.ben).id,
        "invitation_withdraw": Invitation.objects.get().id,
    }[name]
    address = reverse(f"portal:{name}", args=[cast.organization.slug, row_id])
    first = signed_in(cast.ada).post(address, follow=True)
    assert text not in first.content.decode()
    events = AuditEvent.objects.count()
    second = signed_in(cast.dee).post(address, follow=True)
    assert second.redirect_chain == [(reverse(f"portal:{page}", args=[cast.organization.slug]), 302)]
    assert text in second.content.decode()
    assert AuditEvent.objects.count() == events


def test_who_sets_a_price_that_was_set_meanwhile_is_told_and_asked(
    model: Model, cast: Cast, signed_in: Browser
) -> None:
    address = reverse("portal:operator_price", args=[model.id])
    seen = {"seen_price_id": newest_id(model.name)}
    first = signed_in(cast.oda).post(address, {"input_price": "4", "output_price": "20", **seen})
    assert first.status_code == 302
    browser, mine = signed_in(cast.oda), {"input_price": "5", "output_price": "25"}
    # A preview, and a price of one organization, are about something else.
    assert browser.post(address, {**mine, **seen, "preview": "1"}).status_code == 200
    own = browser.post(address, {**mine, **seen, "organization": cast.organization.slug})
    assert own.status_code == 302
    told = browser.post(address, {**mine, **seen})
    assert told.status_code == 400
    page = told.content.decode()
    assert "The price was changed since this page was opened" in page
    assert f"{cast.oda.get_full_name()} set it" in page
    assert "input $4.00, output $20.00" in page
    assert price_history(model.name)[0].input_nano == 4 * 10**9
    again = {name: told.context["price_form"][name].value() for name in (*mine, *seen)}
    assert browser.post(address, again).status_code == 302
    assert [price.input_nano for price in price_history(model.name)][:2] == [5 * 10**9, 4 * 10**9]


def test_a_program_that_names_what_it_has_seen_is_refused_too(model: Model, cast: Cast, signed_in: Browser) -> None:
    address, browser = reverse("api:operator_prices", args=[model.id]), signed_in(cast.oda)
    seen = newest_id(model.name)
    prices = [{"input": figure, "output": "20", "seen_price_id": seen} for figure in ("4", "5")]
    first, second = (browser.post(address, price, content_type="application/json") for price in prices)
    assert first.status_code == 204
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "price_changed"
    assert f"send {newest_id(model.name)} as seen_price_id" in second.json()["error"]["message"]
    # Who names none replaces whatever there is.
    assert browser.post(address, {"input": "5", "output": "20"}, content_type="application/json").status_code == 204
