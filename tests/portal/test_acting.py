"""Acting for an organization: operators only, for a while, on record, and never at its cost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.audit.models import AuditEvent
from tests.factories.portal import Cast

Browser = Callable[..., Client]


def begin(browser: Client, cast: Cast, **fields: str) -> int:
    address = reverse("portal:operator_act", args=[cast.organization.slug])
    return browser.post(address, {"role": "viewer", "reason": "Support case", **fields}).status_code


def page(cast: Cast, name: str = "dashboard") -> str:
    return reverse(f"portal:{name}", args=[cast.organization.slug])


class TestBeginning:
    def test_an_operator_sees_the_pages_under_a_banner_and_the_audit_log_says_so(
        self, cast: Cast, signed_in: Browser
    ) -> None:
        browser = signed_in(cast.oda)
        assert browser.get(page(cast)).status_code == 404
        assert begin(browser, cast) == 302
        answer = browser.get(page(cast))
        assert answer.status_code == 200
        assert "You act for" in answer.content.decode()
        event = AuditEvent.objects.get(action="operator.acting_started")
        assert (event.organization_id, event.actor, event.reason) == (cast.organization.id, cast.oda, "Support case")
        assert "Support case" in signed_in(cast.ada).get(page(cast, "audit")).content.decode()

    def test_members_and_outsiders_cannot(self, cast: Cast, signed_in: Browser) -> None:
        for user in (cast.ada, cast.cyd):
            assert begin(signed_in(user), cast) == 404
        assert not AuditEvent.objects.filter(action="operator.acting_started").exists()

    @pytest.mark.parametrize("fields", [{"reason": ""}, {"role": "owner"}, {"role": "nobody"}])
    def test_without_a_reason_or_with_another_role_nothing_begins(
        self, cast: Cast, signed_in: Browser, fields: dict[str, str]
    ) -> None:
        browser = signed_in(cast.oda)
        begin(browser, cast, **fields)
        assert browser.get(page(cast)).status_code == 404


class TestMeanwhile:
    def test_a_look_changes_nothing_and_an_admin_acts_under_the_operators_name(
        self, cast: Cast, signed_in: Browser
    ) -> None:
        browser = signed_in(cast.oda)
        fields = {"name": "from support", "project": cast.project.id}
        begin(browser, cast)
        assert browser.post(page(cast, "api_key_new"), fields).status_code == 403
        begin(browser, cast, role="admin")
        assert browser.post(page(cast, "api_key_new"), fields).status_code == 200
        assert AuditEvent.objects.get(action="api_key.issued").actor == cast.oda

    def test_other_organizations_stay_closed(self, cast: Cast, signed_in: Browser) -> None:
        browser = signed_in(cast.oda)
        begin(browser, cast, role="admin")
        assert browser.get(reverse("portal:dashboard", args=["cyds-organization"])).status_code == 404

    def test_it_ends_by_itself_and_when_told(self, cast: Cast, signed_in: Browser) -> None:
        browser = signed_in(cast.oda)
        begin(browser, cast)
        with time_machine.travel(timezone.now() + timedelta(minutes=31)):
            assert browser.get(page(cast)).status_code == 404
        begin(browser, cast)
        for _ in range(2):
            assert browser.post(reverse("portal:operator_act_end")).status_code == 302
        assert browser.get(page(cast)).status_code == 404
        assert AuditEvent.objects.filter(action="operator.acting_stopped").count() == 1

    def test_it_ends_with_the_operators_rights(self, cast: Cast, signed_in: Browser) -> None:
        browser = signed_in(cast.oda)
        begin(browser, cast)
        cast.oda.is_staff = False
        cast.oda.save()
        assert browser.get(page(cast)).status_code == 404
