"""An organization changes hands, is deleted, restored, closed; and the audit log tells of it, and from where."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.api_keys import management
from portal.api_keys.forms import ApiKeyForm
from portal.api_keys.models import ApiKey, ManagementKey
from portal.api_keys.selectors import find_active
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.audit.services import record_event
from portal.errors import NotPossible
from portal.organizations import lifecycle
from portal.organizations.models import Member, Organization, Project
from portal.organizations.roles import Role
from portal.organizations.selectors import active_projects_of
from portal.organizations.services import create_project, set_suspended
from portal.quotas import snapshot
from tests.factories.portal import Cast

Commits = Callable[..., Any]


class TestTransfer:
    def test_the_new_owner_owns_and_the_old_one_is_an_admin(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        ada = Member.objects.get(user=cast.ada, organization=cast.organization)
        ben = Member.objects.get(user=cast.ben)
        owned = management.issue(maker=ada, name="mine", role=Role.OWNER).key
        address = reverse("portal:transfer", args=[cast.organization.slug])
        assert signed_in(cast.ada).post(address, {"to": ben.id}).status_code == 302
        roles = dict(Member.objects.filter(organization=cast.organization).values_list("user__name", "role"))
        assert roles == {"Ada": "admin", "Ben": "owner", "Dee": "admin"}
        owned.refresh_from_db()
        assert owned.revoked_at is not None
        assert signed_in(cast.ada).post(address, {"to": ben.id}).status_code == 403

    def test_a_stranger_cannot_be_made_the_owner(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        cyd = Member.objects.get(user=cast.cyd)
        signed_in(cast.ada).post(reverse("portal:transfer", args=[cast.organization.slug]), {"to": cyd.id})
        assert Member.objects.get(user=cast.ada, organization=cast.organization).role == Role.OWNER
        ada = Member.objects.get(user=cast.ada, organization=cast.organization)
        with pytest.raises(NotPossible):
            lifecycle.transfer(organization=cast.organization, to=cyd, actor=ada)

    def test_members_who_changed_meanwhile_are_looked_at_again(self, cast: Cast) -> None:
        ada = Member.objects.get(user=cast.ada, organization=cast.organization)
        ben, dee = Member.objects.get(user=cast.ben), Member.objects.get(user=cast.dee)
        Member.objects.filter(id=ben.id).delete()
        with pytest.raises(NotPossible):
            lifecycle.transfer(organization=cast.organization, to=ben, actor=ada)
        lifecycle.transfer(organization=cast.organization, to=dee, actor=ada)
        # Sent twice: the second one was let in while the first was not done yet.
        with pytest.raises(NotPossible):
            lifecycle.transfer(organization=cast.organization, to=dee, actor=ada)
        owners = Member.objects.filter(organization=cast.organization, role=Role.OWNER)
        assert [owner.user for owner in owners] == [cast.dee]


class TestDeletion:
    def _delete(self, cast: Cast, client: Client, name: str | None = None) -> Any:
        address = reverse("portal:organization_delete", args=[cast.organization.slug])
        return client.post(address, {"confirmation": name or cast.organization.name, "reason": "moved"}, follow=True)

    def test_needs_the_name_typed(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        answer = self._delete(cast, signed_in(cast.ada), "something else")
        assert answer.status_code == 400
        cast.organization.refresh_from_db()
        assert cast.organization.deletes_at is None

    def test_calls_are_refused_until_it_is_restored(
        self, cast: Cast, signed_in: Callable[..., Client], django_capture_on_commit_callbacks: Commits
    ) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        client = signed_in(cast.ada)
        with django_capture_on_commit_callbacks(execute=True):
            page = self._delete(cast, client)
        assert "can be restored" in page.content.decode()
        assert snapshot.read(cast.organization.id).is_suspended
        found = find_active(key.digest)
        assert found is not None
        assert found.organization_suspended
        with django_capture_on_commit_callbacks(execute=True):
            client.post(reverse("portal:organization_restore", args=[cast.organization.slug]))
        assert not snapshot.read(cast.organization.id).is_suspended
        found = find_active(key.digest)
        assert found is not None
        assert not found.organization_suspended

    def test_restoring_does_not_lift_a_suspension(self, cast: Cast) -> None:
        set_suspended(organization=cast.organization, is_suspended=True, actor=cast.oda, reason="debt")
        lifecycle.request_deletion(organization=cast.organization, actor=cast.ada)
        lifecycle.restore(organization=cast.organization, actor=cast.ada)
        assert Organization.objects.get(id=cast.organization.id).is_refused

    def test_a_repeat_keeps_the_first_end(self, cast: Cast) -> None:
        first = lifecycle.request_deletion(organization=cast.organization, actor=cast.ada)
        assert lifecycle.request_deletion(organization=cast.organization, actor=cast.ada) == first
        assert AuditEvent.objects.filter(action="organization.deletion_requested").count() == 1

    def test_after_the_grace_period_nobody_is_in_it_and_its_books_stay(self, cast: Cast) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        member = Member.objects.get(user=cast.dee)
        management.issue(maker=member, name="ci", role=Role.ADMIN)
        end = lifecycle.request_deletion(organization=cast.organization, actor=cast.ada)
        assert lifecycle.close_due(now=end - timedelta(seconds=1)) == 0
        assert [lifecycle.close_due(now=end), lifecycle.close_due(now=end)] == [1, 0]
        assert not Member.objects.filter(organization=cast.organization).exists()
        assert not ManagementKey.objects.filter(revoked_at=None).exists()
        assert ApiKey.objects.get(id=key.id).revoked_at is not None
        assert AuditEvent.objects.filter(organization=cast.organization, action="organization.closed").exists()
        with pytest.raises(NotPossible):
            lifecycle.restore(organization=cast.organization, actor=cast.ada)


class TestAuditLog:
    def test_database_refuses_changes_and_removals(self, cast: Cast) -> None:
        event = AuditEvent.objects.filter(organization=cast.organization).first()
        assert event is not None
        for statement in ("UPDATE portal_auditevent SET action = 'x'", "DELETE FROM portal_auditevent"):
            with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(statement)
        assert AuditEvent.objects.get(id=event.id).action == event.action

    def test_database_refuses_to_empty_it(self, cast: Cast) -> None:
        with connection.cursor() as cursor:
            # Off for tests alone, whose runner empties tables.
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("ALTER TABLE portal_auditevent ENABLE TRIGGER portal_auditevent_not_emptied")
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("TRUNCATE portal_auditevent")
        assert AuditEvent.objects.filter(organization=cast.organization).exists()

    def test_tells_from_where_and_through_which_key(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        browser = signed_in(cast.ada)
        address = reverse("portal:project_new", args=[cast.organization.slug])
        browser.post(address, {"name": "One"}, headers={"user-agent": "Firefox"})
        ada = Member.objects.get(user=cast.ada, organization=cast.organization)
        secret = management.issue(maker=ada, name="ci", role=Role.ADMIN).secret
        Client(headers={"authorization": f"Bearer {secret}"}).post(
            f"/api/organizations/{cast.organization.slug}/projects", {"name": "Two"}, content_type="application/json"
        )
        one, two = AuditEvent.objects.filter(action="project.created").order_by("id")
        assert (one.address, one.user_agent, one.credential) == ("127.0.0.1", "Firefox", "")
        assert two.actor == cast.ada
        assert two.credential == f"management key ci ({secret[:17]}…)"
        page = browser.get(reverse("portal:audit", args=[cast.organization.slug])).content.decode()
        assert "Through management key ci" in page

    def test_filters_leave_what_fits(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        issue(project=cast.project, name="laptop", actor=cast.ada)
        issue(project=cast.project, name="server", actor=cast.ben)
        client = signed_in(cast.ada)
        address = reverse("portal:audit", args=[cast.organization.slug])

        def labels(**query: str) -> list[str]:
            return [told.event.subject_label[:6] for told in client.get(address, query).context["rows"]]

        assert labels(about="api_key") == ["server", "laptop"]
        assert labels(about="api_key", person="ben") == ["server"]
        assert labels(text="lapt") == ["laptop"]
        assert labels(start="2999-01-01") == []
        assert labels(about="api_key", end=f"{timezone.now():%Y-%m-%d}") == ["server", "laptop"]
        assert len(labels(start="nonsense")) > 2

    def test_csv_holds_every_page_and_no_formula(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        for number in range(60):
            record_event(
                organization_id=cast.organization.id,
                actor=cast.ada,
                action="project.created",
                subject=cast.project,
                label=f"=cmd {number}",
            )
        answer = signed_in(cast.ada).get(
            reverse("portal:audit_export", args=[cast.organization.slug]), {"about": "project"}
        )
        assert answer.headers["Content-Disposition"] == f'attachment; filename="audit-{cast.organization.slug}.csv"'
        rows = list(csv.DictReader(io.StringIO(b"".join(answer).decode())))  # type: ignore[arg-type]
        assert len(rows) == 60
        assert rows[0]["subject"] == "'=cmd 59"
        assert rows[0]["who"] == "ada@example.com"
        assert signed_in(cast.ben).get(reverse("portal:audit_export", args=[cast.organization.slug])).status_code == 403


class TestArchivedProject:
    def _post(self, client: Client, cast: Cast, project: Project, act: str, **data: str) -> Any:
        address = reverse(f"portal:project_{act}", args=[cast.organization.slug, project.slug])
        return client.post(address, data, follow=True)

    def test_its_keys_are_told_apart_until_it_is_restored(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        project = create_project(organization=cast.organization, name="Search", actor=cast.ada)
        issued = issue(project=project, name="old", actor=cast.ada)
        ada = signed_in(cast.ada)
        page = self._post(ada, cast, project, "archive", confirmation="search")
        assert b"Nothing is archived" in page.content
        page = self._post(ada, cast, project, "archive", confirmation="Search", reason="the team is gone")
        assert b"Archived" in page.content
        found = find_active(issued.api_key.digest)
        assert found is not None
        assert found.project_archived
        project.refresh_from_db()
        with pytest.raises(NotPossible):
            issue(project=project, name="new", actor=cast.ada)
        assert "Search" not in str(key_form(cast).fields["project"].choices)
        self._post(ada, cast, project, "restore")
        found = find_active(issued.api_key.digest)
        assert found is not None
        assert not found.project_archived
        events = AuditEvent.objects.filter(action__startswith="project.").order_by("id")
        assert [(each.action, each.reason) for each in events] == [
            ("project.created", ""),
            ("project.archived", "the team is gone"),
            ("project.restored", ""),
        ]

    def test_the_default_project_stays(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        page = self._post(signed_in(cast.ada), cast, cast.project, "archive", confirmation=cast.project.name)
        assert b"default project cannot be archived" in page.content
        cast.project.refresh_from_db()
        assert not cast.project.is_archived


def key_form(cast: Cast) -> ApiKeyForm:
    return ApiKeyForm(projects=active_projects_of(cast.organization), may_limit=True, models=[])
