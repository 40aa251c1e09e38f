"""Every page as an anonymous reader, an outsider, a member, an admin and an operator."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, reverse
from django.utils import timezone

from billing.invoices.services import draft_invoice
from portal import urls
from portal.api_keys.services import issue
from portal.catalog.models import Deployment, Model
from portal.organizations.invitations import invite
from portal.organizations.models import Member
from portal.organizations.roles import Role
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from portal.users.models import User
from tests.factories.portal import Cast
from tests.factories.usage import use

Browser = Callable[[User | None], Client]

# What only an admin may open or send; every other page of an organization is for all its members.
ADMINS_GET = {"billing_details"}
ADMINS_POST = {
    "billing_details",
    "limits",
    "limit_remove",
    "members",
    "member_role",
    "invitation_withdraw",
    "settings",
    "project_new",
}
POST_ONLY = {
    "api_key_new",
    "api_key_revoke",
    "limit_remove",
    "member_role",
    "member_remove",
    "invitation_withdraw",
    "project_new",
    "operator_act",
    "operator_act_end",
    "operator_credit",
    "operator_terms",
    "operator_suspension",
    "operator_price",
    "operator_invoice_run",
}
PUBLIC = {"front", "models"}
NAMES_OF_MEMBERS = [pattern.name for pattern in urls.organization_pages if isinstance(pattern, URLPattern)]
NAMES_OF_OPERATORS = [pattern.name for pattern in urls.operator_pages if isinstance(pattern, URLPattern)]


@pytest.fixture
def address(cast: Cast, model: Model) -> Callable[[str], str]:
    """The address of a page by its URL name, with rows that exist in Ada's organization."""
    organization = cast.organization
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    request_id = use(key, model.name, started_at=timezone.now())
    invoice = draft_invoice(organization_id=organization.id, period=f"{timezone.now():%Y-%m}")
    change_quota(
        organization=organization, kind=QuotaKind.REQUESTS, window=Window.DAY, limit=5, actor=cast.ada, reason="test"
    )
    arguments: dict[str, Any] = {
        "slug": organization.slug,
        "api_key_id": key.id,
        "request_id": request_id,
        "invoice_id": invoice.id,
        "quota_id": Quota.objects.get(organization=organization).id,
        "member_id": Member.objects.get(user=cast.ben).id,
        "invitation_id": invite(
            organization=organization, email="eve@example.com", role=Role.DEVELOPER, actor=cast.ada
        ).id,
        "model_id": model.id,
        "deployment_id": Deployment.objects.get(model=model).id,
    }

    def make(name: str) -> str:
        pattern = next(p for p in patterns() if p.name == name)
        fields = pattern.pattern.converters
        if name in NAMES_OF_MEMBERS:
            fields = {**fields, "slug": None}
        return reverse(f"portal:{name}", kwargs={field: arguments[field] for field in fields})

    return make


def patterns() -> list[URLPattern]:
    found: list[URLPattern] = []
    for entry in urls.urlpatterns:
        found += entry.url_patterns if isinstance(entry, URLResolver) else [entry]
    return found


def send(client: Client, name: str, address: str) -> int:
    return int((client.post(address) if name in POST_ONLY else client.get(address)).status_code)


@pytest.mark.parametrize("name", NAMES_OF_MEMBERS)
class TestPagesOfAnOrganization:
    def test_anonymous_reader_is_asked_to_sign_in(self, name: str, address: Any, signed_in: Browser) -> None:
        assert send(signed_in(None), name, address(name)) == 302

    def test_outsider_gets_404(self, name: str, address: Any, signed_in: Browser, cast: Cast) -> None:
        assert send(signed_in(cast.cyd), name, address(name)) == 404
        # The operator is no member either: their pages are their own.
        assert send(signed_in(cast.oda), name, address(name)) == 404

    def test_member_sees_it_unless_it_is_for_admins(
        self, name: str, address: Any, signed_in: Browser, cast: Cast
    ) -> None:
        client = signed_in(cast.ben)
        if name in POST_ONLY:
            # Ben names himself in member_remove, and anyone may leave.
            expected = {403} if name in ADMINS_POST else {302, 400}
        else:
            expected = {403} if name in ADMINS_GET else {200}
        assert send(client, name, address(name)) in expected

    def test_member_cannot_send_what_is_for_admins(
        self, name: str, address: Any, signed_in: Browser, cast: Cast
    ) -> None:
        if name in ADMINS_POST:
            assert signed_in(cast.ben).post(address(name)).status_code == 403

    def test_admin_sees_it(self, name: str, address: Any, signed_in: Browser, cast: Cast) -> None:
        assert send(signed_in(cast.dee), name, address(name)) in ({302, 400} if name in POST_ONLY else {200})


@pytest.mark.parametrize("name", NAMES_OF_OPERATORS)
class TestPagesOfTheOperator:
    def test_nobody_else_sees_that_they_exist(self, name: str, address: Any, signed_in: Browser, cast: Cast) -> None:
        assert send(signed_in(None), name, address(name)) == 302
        assert send(signed_in(cast.ada), name, address(name)) == 404

    def test_operator_sees_it(self, name: str, address: Any, signed_in: Browser, cast: Cast) -> None:
        assert send(signed_in(cast.oda), name, address(name)) in ({302, 400} if name in POST_ONLY else {200})


def test_rows_of_another_organization_are_not_there(address: Any, signed_in: Browser, cast: Cast) -> None:
    """Cyd asks for Ada's rows under Cyd's own organization."""
    client = signed_in(cast.cyd)
    own = Member.objects.get(user=cast.cyd).organization
    for name in ("api_key_revoke", "request", "invoice", "invoice_pdf", "limit_remove", "member_remove"):
        mine = address(name).replace(cast.organization.slug, own.slug)
        assert send(client, name, mine) == 404, name


def test_unknown_rows_are_not_there(signed_in: Browser, cast: Cast) -> None:
    client = signed_in(cast.ada)
    slug = cast.organization.slug
    assert client.get(reverse("portal:request", args=[slug, uuid.uuid4()])).status_code == 404
    assert client.get(reverse("portal:invoice", args=[slug, 10**9])).status_code == 404
    assert client.get(reverse("portal:dashboard", args=["nowhere"])).status_code == 404


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_pages_need_no_account(name: str, db: None) -> None:
    assert Client().get(reverse(f"portal:{name}")).status_code == 200


def test_design_page_exists_in_development_only(db: None, settings: Any) -> None:
    assert Client().get("/design").status_code == 404
    settings.DEBUG = True
    assert Client().get("/design").status_code == 200
