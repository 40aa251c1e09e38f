"""Members, roles, invitations, projects, settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.accounts.selectors import account_of
from portal.api_keys.services import issue, revoke
from portal.audit.models import AuditEvent
from portal.errors import AlreadyMember, InvitationNotOpen, LastOwner, NameTaken
from portal.organizations import invitations, services
from portal.organizations.models import Invitation, Member, Project
from portal.organizations.roles import Role
from portal.quotas import snapshot
from portal.quotas.models import QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import Cast, make_user

Browser = Callable[..., Client]


class TestRoles:
    def test_last_owner_cannot_step_down_or_leave(self, cast: Cast) -> None:
        ada = Member.objects.get(user=cast.ada)
        with pytest.raises(LastOwner):
            services.change_role(member=ada, role=Role.DEVELOPER, actor=cast.ada)
        with pytest.raises(LastOwner):
            services.remove_member(member=ada, actor=cast.ada)

    def test_second_owner_frees_the_first(self, cast: Cast) -> None:
        services.change_role(member=Member.objects.get(user=cast.ben), role=Role.OWNER, actor=cast.ada)
        services.remove_member(member=Member.objects.get(user=cast.ada), actor=cast.ada)
        assert not Member.objects.filter(user=cast.ada).exists()
        assert AuditEvent.objects.filter(action="member.removed").count() == 1

    def test_limits_of_who_leaves_end_at_once_and_on_record(
        self, cast: Cast, django_capture_on_commit_callbacks: Callable[..., object]
    ) -> None:
        ben = Member.objects.get(user=cast.ben)
        change_quota(
            organization=cast.organization,
            kind=QuotaKind.REQUESTS,
            window=Window.DAY,
            limit=5,
            member=ben,
            actor=cast.ada,
        )
        assert snapshot.publish(cast.organization.id).quotas
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            services.remove_member(member=ben, actor=cast.ada)
        assert snapshot.read(cast.organization.id).quotas == ()
        assert AuditEvent.objects.filter(action="quota.removed", subject_label__contains="ben@example.com").count() == 1

    def test_admin_cannot_make_or_remove_an_owner(self, cast: Cast, signed_in: Browser) -> None:
        client = signed_in(cast.dee)
        slug = cast.organization.slug
        ada, ben = Member.objects.get(user=cast.ada), Member.objects.get(user=cast.ben)
        assert client.post(reverse("portal:member_role", args=[slug, ben.id]), {"role": "owner"}).status_code == 403
        assert client.post(reverse("portal:member_role", args=[slug, ada.id]), {"role": "developer"}).status_code == 403
        assert client.post(reverse("portal:member_remove", args=[slug, ada.id])).status_code == 403

    def test_member_cannot_remove_others_but_can_leave(self, cast: Cast, signed_in: Browser) -> None:
        client = signed_in(cast.ben)
        slug = cast.organization.slug
        dee, ben = Member.objects.get(user=cast.dee), Member.objects.get(user=cast.ben)
        assert client.post(reverse("portal:member_remove", args=[slug, dee.id])).status_code == 403
        assert client.post(reverse("portal:member_remove", args=[slug, ben.id])).status_code == 302
        assert not Member.objects.filter(user=cast.ben).exists()


class TestInvitations:
    @pytest.fixture
    def link(self, cast: Cast, signed_in: Browser, django_capture_on_commit_callbacks: Callable[..., object]) -> str:
        """Of the mail to Eve."""
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            answer = signed_in(cast.dee).post(
                reverse("portal:members", args=[cast.organization.slug]), {"email": "Eve@example.com", "role": "admin"}
            )
        assert answer.status_code == 302
        assert mail.outbox[-1].to == ["eve@example.com"]
        found = re.search(r"http\S+/invitations/\S+", str(mail.outbox[-1].body))
        assert found
        return found.group()

    def test_invited_person_joins_once_with_the_role(self, cast: Cast, link: str, signed_in: Browser) -> None:
        eve = signed_in(make_user("Eve"))
        assert "Join Analytical Engines" in eve.get(link).content.decode()
        assert eve.post(link).headers["Location"] == f"/o/{cast.organization.slug}/"
        eve.post(link)
        assert Member.objects.get(user__email="eve@example.com").role == Role.ADMIN

    def test_link_is_for_the_invited_address_alone(self, cast: Cast, link: str, signed_in: Browser) -> None:
        cyd = signed_in(cast.cyd)
        assert "another address" in cyd.get(link).content.decode()
        assert cyd.post(link).status_code == 403
        assert Client().post(link).status_code == 403
        assert not Member.objects.filter(user=cast.cyd, organization=cast.organization).exists()

    def test_an_admin_is_offered_no_act_on_an_owner(self, cast: Cast) -> None:
        owner, developer = (
            Member.objects.get(user=each, organization=cast.organization) for each in (cast.ada, cast.ben)
        )
        for person, is_offered in ((cast.ada, True), (cast.dee, False)):
            browser = Client()
            browser.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
            page = browser.get(reverse("portal:members", args=[cast.organization.slug])).content.decode()
            assert f'id="role-{developer.id}"' in page
            for act in ("role", "remove"):
                assert (f'id="{act}-{owner.id}"' in page) == is_offered

    def test_subject_is_plain_text(self, cast: Cast, django_capture_on_commit_callbacks: Callable[..., object]) -> None:
        theirs = Member.objects.get(user=cast.cyd).organization
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            invitations.invite(organization=theirs, email="eve@example.com", role=Role.VIEWER, actor=cast.cyd)
        assert mail.outbox[-1].subject == "Cyd invites you to Cyd's organization"

    def test_token_is_not_stored(self, link: str) -> None:
        assert Invitation.objects.get().token_digest not in link

    def test_expired_or_withdrawn_link_is_refused(self, cast: Cast, link: str, signed_in: Browser) -> None:
        eve = make_user("Eve")
        invitation = Invitation.objects.get()
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        assert signed_in(eve).get(link).status_code == 404
        assert invitations.close_expired(now=timezone.now()) == 1
        with pytest.raises(InvitationNotOpen):
            invitations.accept(invitation=invitation, user=eve)
        again = invitations.invite(
            organization=cast.organization, email="eve@example.com", role=Role.DEVELOPER, actor=cast.ada
        )
        invitations.withdraw(invitation=again, actor=cast.ada)
        invitations.withdraw(invitation=again, actor=cast.ada)
        with pytest.raises(InvitationNotOpen):
            invitations.accept(invitation=again, user=eve)

    def test_second_invitation_of_an_address_replaces_the_first(self, cast: Cast, link: str) -> None:
        invitations.invite(organization=cast.organization, email="EVE@example.com", role=Role.DEVELOPER, actor=cast.ada)
        assert Invitation.objects.filter(closed_at=None).count() == 1

    def test_member_is_not_invited_again(self, cast: Cast) -> None:
        with pytest.raises(AlreadyMember):
            invitations.invite(
                organization=cast.organization, email="Ben@example.com", role=Role.DEVELOPER, actor=cast.ada
            )


def test_settings_change_name_and_zone_of_limits_and_invoices(cast: Cast, signed_in: Browser) -> None:
    address = reverse("portal:settings", args=[cast.organization.slug])
    assert signed_in(cast.dee).post(address, {"name": "AE", "time_zone": "Asia/Tokyo"}).status_code == 302
    cast.organization.refresh_from_db()
    assert (cast.organization.name, cast.organization.time_zone) == ("AE", "Asia/Tokyo")
    assert account_of(cast.organization.id).time_zone == "Asia/Tokyo"
    assert signed_in(cast.dee).post(address, {"name": "AE", "time_zone": "Mars/Olympus"}).status_code == 400


def test_project_names_are_unique_in_an_organization(cast: Cast) -> None:
    services.create_project(organization=cast.organization, name="Search", actor=cast.ada)
    with pytest.raises(NameTaken):
        services.create_project(organization=cast.organization, name="search", actor=cast.ada)
    assert Project.objects.filter(organization=cast.organization).count() == 2


def test_members_list_takes_the_same_queries_for_any_size(
    cast: Cast, signed_in: Browser, django_assert_num_queries: Callable[..., object]
) -> None:
    for number in range(60):
        user = make_user(f"person{number}")
        Member.objects.create(user=user, organization=cast.organization)
    client = signed_in(cast.ada)
    address = reverse("portal:members", args=[cast.organization.slug])
    # Session, user, membership, members, their number and second factors, owners, invitations, balance, switcher.
    with django_assert_num_queries(10):  # type: ignore[attr-defined]
        page = client.get(address)
    rest = client.get(address, {"page": 2})
    assert [len(each.context["members"]) for each in (page, rest)] == [50, 13]
    assert "person59" in rest.content.decode()
    assert "person59" not in page.content.decode()


def test_projects_are_listed_by_page_with_their_keys_and_what_they_cost(
    cast: Cast, signed_in: Browser, django_assert_num_queries: Callable[..., object]
) -> None:
    made = [
        services.create_project(organization=cast.organization, name=f"P{number:02}", actor=cast.ada)
        for number in range(30)
    ]
    issue(project=made[25], name="works", actor=cast.ada)
    issue(project=made[25], name="works too", actor=cast.ada)
    revoke(api_key=issue(project=made[25], name="gone", actor=cast.ada).api_key, actor=cast.ada)
    issue(project=made[0], name="elsewhere", actor=cast.ada)
    client, address = signed_in(cast.ada), reverse("portal:settings", args=[cast.organization.slug])
    # Session, user, membership, people, second factors, projects, their number, keys and cost, balance, switcher.
    with django_assert_num_queries(11):  # type: ignore[attr-defined]
        first = client.get(address)
    rest = client.get(address, {"page": 2})
    assert [[each.name for each in page.context["projects"]] for page in (first, rest)] == [
        [Project.objects.get(organization=cast.organization, is_default=True).name, *(f"P{n:02}" for n in range(19))],
        [f"P{n:02}" for n in range(19, 30)],
    ]
    assert first.context["active_keys"] == {made[0].id: 1}
    assert rest.context["active_keys"] == {made[25].id: 2}
    assert f'href="{address}?page=2#projects"' in first.content.decode()
    assert f'href="{address}?page=1#projects"' in rest.content.decode()


def test_responses_are_kept_only_after_an_admin_switched_it_on(cast: Cast, signed_in: Browser) -> None:
    browser, page = signed_in(cast.ada), reverse("portal:settings", args=[cast.organization.slug])
    address = reverse("portal:responses_kept", args=[cast.organization.slug])
    assert b"Prompts and answers are never stored." in browser.get(page).content
    for _ in range(2):
        assert b"Responses are kept from now on" in browser.post(address, {"kept": "1"}, follow=True).content
    cast.organization.refresh_from_db()
    assert cast.organization.keeps_responses
    assert b"forgotten 30 days after" in browser.get(page).content
    assert b"within the hour" in browser.post(address, {"kept": "0"}, follow=True).content
    cast.organization.refresh_from_db()
    assert not cast.organization.keeps_responses
    actions = AuditEvent.objects.filter(action__startswith="organization.responses").order_by("id")
    assert list(actions.values_list("action", flat=True)) == [
        "organization.responses_kept",
        "organization.responses_not_kept",
    ]
