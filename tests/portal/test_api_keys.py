"""Keys: their form, that the secret is shown once and only its digest is stored, revoking."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.api_keys import secrets
from portal.api_keys.models import ApiKey
from portal.api_keys.selectors import find_active
from portal.api_keys.services import issue, mark_used, playground_key, revoke
from portal.audit.models import AuditEvent
from portal.organizations.models import Member, Project
from tests.factories.portal import Cast


class TestTheSecret:
    def test_has_prefix_random_part_and_checksum(self) -> None:
        secret = secrets.generate()
        assert secret.startswith("sk-tf-")
        assert len(secret) == 52
        assert secrets.looks_valid(secret)
        assert secrets.generate() != secret

    @pytest.mark.parametrize("place", [6, 20, 45, 51])
    def test_a_typo_is_seen_without_a_look_up(self, place: int) -> None:
        secret = secrets.generate()
        other = "a" if secret[place] != "a" else "b"
        assert not secrets.looks_valid(secret[:place] + other + secret[place + 1 :])

    @pytest.mark.parametrize("stranger", ["", "sk-tf-", "sk-proj-abc", "x" * 52, "sk-tf-" + "é" * 46])
    def test_other_tokens_are_no_keys(self, stranger: str) -> None:
        assert not secrets.looks_valid(stranger)

    def test_digest_depends_on_the_pepper(self, settings: object) -> None:
        before = secrets.digest("secret")
        settings.API_KEY_PEPPER = "another pepper, of at least 32 characters"  # type: ignore[attr-defined]
        assert secrets.digest("secret") != before


def test_secret_is_shown_once_and_only_its_digest_is_stored(cast: Cast, signed_in: Callable[..., Client]) -> None:
    client = signed_in(cast.ben)
    address = reverse("portal:api_key_new", args=[cast.organization.slug])
    answer = client.post(address, {"name": "laptop", "project": cast.project.id})
    secret = answer.context["issued"].secret
    assert secret in answer.content.decode()
    assert answer.headers["Cache-Control"].startswith("max-age=0, no-cache, no-store")

    key = ApiKey.objects.get(name="laptop")
    assert key.digest == secrets.digest(secret)
    assert key.prefix == secret[:11]
    assert secret not in client.get(reverse("portal:api_keys", args=[cast.organization.slug])).content.decode()
    with connection.cursor() as cursor:
        for table in ("portal_apikey", "portal_auditevent", "django_session"):
            cursor.execute(f"SELECT COUNT(*) FROM {table} t WHERE t::text LIKE %s", [f"%{secret[11:]}%"])  # noqa: S608
            assert cursor.fetchone() == (0,)


def test_key_without_a_name_is_refused_at_the_field(cast: Cast, signed_in: Callable[..., Client]) -> None:
    address = reverse("portal:api_key_new", args=[cast.organization.slug])
    answer = signed_in(cast.ben).post(address, {"name": "", "project": cast.project.id})
    assert answer.status_code == 400
    assert answer.context["form"].errors["name"]
    assert not ApiKey.objects.exists()


def test_key_of_another_organizations_project_is_refused(cast: Cast, signed_in: Callable[..., Client]) -> None:
    theirs = Project.objects.get(organization=Member.objects.get(user=cast.cyd).organization)
    address = reverse("portal:api_key_new", args=[cast.organization.slug])
    answer = signed_in(cast.ben).post(address, {"name": "x", "project": theirs.id})
    assert answer.status_code == 400
    key = ApiKey(project=theirs, organization=cast.organization, name="x", prefix="x", digest="x")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(IntegrityError, match="api_key_project_of_organization"), transaction.atomic():
            key.save()


class TestFindActive:
    def test_finds_who_pays_in_one_query(self, cast: Cast, django_assert_num_queries: Callable[..., object]) -> None:
        expires_at = timezone.now() + timedelta(days=1)
        issued = issue(project=cast.project, name="laptop", actor=cast.ada, expires_at=expires_at)
        with django_assert_num_queries(1):  # type: ignore[attr-defined]
            found = find_active(secrets.digest(issued.secret))
        assert found is not None
        assert (found.api_key_id, found.organization_id, found.project_id) == (
            issued.api_key.id,
            cast.organization.id,
            cast.project.id,
        )
        assert found.expires_at == expires_at
        assert not found.organization_suspended

    def test_revoked_key_is_not_found(
        self,
        cast: Cast,
        announcements: list[tuple[str, str]],
        django_capture_on_commit_callbacks: Callable[..., object],
    ) -> None:
        issued = issue(project=cast.project, name="laptop", actor=cast.ada)
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            revoke(api_key=issued.api_key, actor=cast.ada)
            revoke(api_key=issued.api_key, actor=cast.ada)
        assert find_active(issued.api_key.digest) is None
        assert announcements == [("keys:revoked", issued.api_key.digest)]
        assert AuditEvent.objects.filter(action="api_key.revoked").count() == 1


def test_playground_key_is_made_once_and_hidden(cast: Cast, signed_in: Callable[..., Client]) -> None:
    assert playground_key(cast.project) == playground_key(cast.project)
    page = signed_in(cast.ada).get(reverse("portal:api_keys", args=[cast.organization.slug]))
    assert "Playground" not in [key.name for key in page.context["page"]]


def test_last_use_moves_forward_only(cast: Cast) -> None:
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    now = timezone.now()
    mark_used({key.id: now})
    mark_used({key.id: now - timedelta(hours=1)})
    key.refresh_from_db()
    assert key.last_used_at == now
    mark_used({})


def test_list_takes_the_same_queries_for_one_key_and_fifty(
    cast: Cast, signed_in: Callable[..., Client], django_assert_num_queries: Callable[..., object]
) -> None:
    client = signed_in(cast.ada)
    address = reverse("portal:api_keys", args=[cast.organization.slug])
    for number in range(60):
        issue(project=cast.project, name=f"key {number}", actor=cast.ada)
    # Session, user, membership, projects, models, count, page, balance, switcher.
    with django_assert_num_queries(9):  # type: ignore[attr-defined]
        client.get(address)
    with django_assert_num_queries(9):  # type: ignore[attr-defined]
        client.get(address + "?page=2")
