"""What a key may be used for: changing it, rotating its secret, and management keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.api_keys import management, secrets, services
from portal.api_keys.models import ApiKey, ManagementKey
from portal.api_keys.selectors import find_active, find_management_key
from portal.api_keys.services import KeyRules, issue
from portal.audit.models import AuditEvent
from portal.errors import KeyNotActive, NameHoldsKey
from portal.organizations.models import Member
from portal.organizations.roles import Role
from portal.organizations.services import change_role, remove_member
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import Cast, make_model

Committed = Callable[..., Any]


@pytest.fixture
def commits(django_capture_on_commit_callbacks: Committed) -> Committed:
    return lambda: django_capture_on_commit_callbacks(execute=True)


class TestRotation:
    def test_both_secrets_work_until_the_overlap_ends(self, cast: Cast) -> None:
        first = issue(project=cast.project, name="laptop", actor=cast.ada)
        second = services.rotate(api_key=first.api_key, overlap=timedelta(hours=1), actor=cast.ada)
        assert second.secret != first.secret
        old, new = (find_active(secrets.digest(issued.secret)) for issued in (first, second))
        assert old is not None
        assert new is not None
        assert old.api_key_id == new.api_key_id == first.api_key.id
        assert new.expires_at is None
        assert old.expires_at is not None
        assert timedelta(minutes=59) < old.expires_at - timezone.now() <= timedelta(hours=1)

    def test_limits_and_budget_stay_with_the_key(self, cast: Cast) -> None:
        first = issue(project=cast.project, name="laptop", actor=cast.ada)
        change_quota(
            organization=cast.organization,
            api_key=first.api_key,
            kind=QuotaKind.SPEND,
            window=Window.MONTH,
            limit=10,
            actor=cast.ada,
        )
        second = services.rotate(api_key=first.api_key, overlap=timedelta(0), actor=cast.ada)
        assert Quota.objects.get(api_key=second.api_key).limit == 10

    def test_without_overlap_the_old_secret_ends_at_once(self, cast: Cast) -> None:
        first = issue(project=cast.project, name="laptop", actor=cast.ada)
        services.rotate(api_key=first.api_key, overlap=timedelta(0), actor=cast.ada)
        assert find_active(secrets.digest(first.secret)) is None

    def test_gateways_hear_of_every_secret_of_a_key_that_is_revoked(
        self, cast: Cast, announcements: list[tuple[str, str]], commits: Committed
    ) -> None:
        first = issue(project=cast.project, name="laptop", actor=cast.ada)
        second = services.rotate(api_key=first.api_key, overlap=timedelta(hours=1), actor=cast.ada)
        announcements.clear()
        with commits():
            services.revoke(api_key=second.api_key, actor=cast.ada)
        digests = {secrets.digest(issued.secret) for issued in (first, second)}
        assert {message for channel, message in announcements if channel == "keys:revoked"} == digests
        assert all(find_active(digest) is None for digest in digests)

    def test_a_revoked_key_is_not_rotated(self, cast: Cast) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        services.revoke(api_key=key, actor=cast.ada)
        with pytest.raises(KeyNotActive):
            services.rotate(api_key=key, overlap=timedelta(0), actor=cast.ada)

    def test_page_shows_the_new_secret_once_and_can_end_the_old(
        self, cast: Cast, signed_in: Callable[..., Client]
    ) -> None:
        first = issue(project=cast.project, name="laptop", actor=cast.ada)
        client = signed_in(cast.ben)
        arguments = [cast.organization.slug, first.api_key.id]
        answer = client.post(reverse("portal:api_key_rotate", args=arguments), {"overlap": "24"})
        secret = answer.context["issued"].secret
        assert secret in answer.content.decode()
        page = client.get(reverse("portal:api_key", args=arguments))
        assert secret not in page.content.decode()
        (retired,) = page.context["retired"]
        client.post(reverse("portal:retired_secret_end", args=[*arguments, retired.id]))
        assert find_active(secrets.digest(first.secret)) is None
        assert find_active(secrets.digest(secret)) is not None


class TestChange:
    def test_rules_are_kept_audited_and_announced(
        self, cast: Cast, announcements: list[tuple[str, str]], commits: Committed
    ) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        rules = KeyRules(routes=["chat"], models=["m"], networks=["203.0.113.0/24"])
        with commits():
            for _ in range(2):
                services.change(api_key=key, name="server", expires_at=None, rules=rules, actor=cast.ada)
        found = find_active(key.digest)
        assert found is not None
        assert (found.allowed_routes, found.allowed_models, found.allowed_networks) == (
            ("chat",),
            ("m",),
            ("203.0.113.0/24",),
        )
        assert announcements.count(("keys:revoked", key.digest)) == 1
        event = AuditEvent.objects.get(action="api_key.changed")
        assert event.before["networks"] == "all"
        assert event.after["networks"] == "203.0.113.0/24"

    def test_page_takes_models_routes_networks_and_a_last_day(
        self, cast: Cast, signed_in: Callable[..., Client]
    ) -> None:
        model = make_model()
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        address = reverse("portal:api_key", args=[cast.organization.slug, key.id])
        fields = {"name": "server", "models": [model.name], "routes": ["chat", "messages"], "networks": "10.0.0.5/8"}
        refused = signed_in(cast.ben).post(address, fields)
        assert refused.status_code == 400
        assert "write 10.0.0.0/8" in refused.content.decode()
        day = (timezone.now() + timedelta(days=3)).date()
        fields |= {"networks": "10.0.0.0/8\n2001:db8::/32", "last_day": f"{day}"}
        assert signed_in(cast.ben).post(address, fields).status_code == 302
        key.refresh_from_db()
        assert key.allowed_networks == ["10.0.0.0/8", "2001:db8::/32"]
        assert key.allowed_routes == ["chat", "messages"]
        assert key.expires_at is not None
        assert f"{key.expires_at:%Y-%m-%d %H:%M}" == f"{day + timedelta(days=1)} 00:00"

    def test_budget_of_a_new_key_is_a_limit_of_its_own(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        address = reverse("portal:api_key_new", args=[cast.organization.slug])
        fields = {"name": "ci", "project": cast.project.id, "budget": "25.50"}
        assert signed_in(cast.dee).post(address, fields).status_code == 200
        quota = Quota.objects.get(api_key__name="ci")
        assert (quota.kind, quota.window, quota.limit) == ("spend", "month", 25_500_000_000)
        # A developer makes keys and sets no limits.
        signed_in(cast.ben).post(address, {**fields, "name": "mine"})
        assert not Quota.objects.filter(api_key__name="mine").exists()


def test_a_key_in_place_of_its_name_is_refused(cast: Cast, signed_in: Callable[..., Client]) -> None:
    secret = secrets.generate()
    with pytest.raises(NameHoldsKey):
        issue(project=cast.project, name=secret, actor=cast.ada)
    address = reverse("portal:api_key_new", args=[cast.organization.slug])
    answer = signed_in(cast.ben).post(address, {"name": f"x {secret}", "project": cast.project.id})
    assert answer.status_code == 400
    assert not ApiKey.objects.exists()


class TestManagementKeys:
    def _issue(self, cast: Cast, role: Role = Role.ADMIN) -> management.IssuedManagementKey:
        maker = Member.objects.get(user=cast.dee, organization=cast.organization)
        return management.issue(maker=maker, name="ci", role=role)

    def test_form_tells_the_two_kinds_apart_and_no_table_mixes_them(self, cast: Cast) -> None:
        issued = self._issue(cast)
        assert issued.secret.startswith("sk-tf-admin-")
        assert secrets.kind_of(issued.secret) is secrets.Kind.MANAGEMENT
        assert not secrets.looks_valid(issued.secret)
        digest = secrets.digest(issued.secret)
        assert find_active(digest) is None
        assert find_management_key(digest) is not None
        api_key = issue(project=cast.project, name="laptop", actor=cast.ada)
        assert find_management_key(secrets.digest(api_key.secret)) is None

    def test_they_end_with_what_their_maker_may(self, cast: Cast) -> None:
        member = Member.objects.get(user=cast.dee, organization=cast.organization)
        strong, weak = self._issue(cast).key, self._issue(cast, Role.VIEWER).key
        change_role(member=member, role=Role.DEVELOPER, actor=cast.ada)
        for key in (strong, weak):
            key.refresh_from_db()
            assert key.revoked_at is not None
        change_role(member=member, role=Role.ADMIN, actor=cast.ada)
        again = self._issue(cast).key
        remove_member(member=member, actor=cast.ada)
        assert not ManagementKey.objects.filter(id=again.id, revoked_at=None).exists()
        assert AuditEvent.objects.filter(action="management_key.revoked").count() == 3

    def test_admin_cannot_make_one_of_an_owner(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        address = reverse("portal:management_keys", args=[cast.organization.slug])
        answer = signed_in(cast.dee).post(address, {"name": "x", "role": "owner"})
        assert answer.status_code == 400
        made = signed_in(cast.dee).post(address, {"name": "x", "role": "admin", "expires": "90"})
        assert made.context["issued"].secret in made.content.decode()
        assert ManagementKey.objects.get().expires_at is not None

    def test_use_is_written_once_a_minute(self, cast: Cast) -> None:
        key = self._issue(cast).key
        now = timezone.now()
        management.mark_used(key, now)
        # Two calls at once both saw it unused.
        management.mark_used(key, now + timedelta(seconds=30))
        key.refresh_from_db()
        assert key.last_used_at == now
        management.mark_used(key, now + timedelta(seconds=30))
        management.mark_used(key, now + timedelta(seconds=61))
        key.refresh_from_db()
        assert key.last_used_at == now + timedelta(seconds=61)
