"""From the sign-up form to an organization with a project and credit; signing in; the policy of every page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from billing.ledger import selectors as ledger
from billing.models import CreditGrant
from portal.organizations.models import Member, Organization, Project
from portal.organizations.roles import Role
from portal.organizations.services import create_organization, provide_first_organization
from portal.users.models import User
from tests.factories.portal import PASSWORD, Cast, make_user


@pytest.fixture(autouse=True)
def no_rate_limits_from_before() -> None:
    cache.clear()


def sign_up(client: Client, email: str = "Ada.L@example.com") -> str:
    """Fills in the form and returns the address in the mail."""
    answer = client.post(reverse("account_signup"), {"email": email, "password1": PASSWORD})
    assert answer.status_code == 302, answer.context["form"].errors
    link = re.search(r"http\S+confirm-email\S+", str(mail.outbox[-1].body))
    assert link
    return link.group()


@pytest.mark.django_db
class TestSignUp:
    def test_nothing_exists_before_the_address_is_proven(self) -> None:
        sign_up(Client())
        assert mail.outbox[0].to == ["ada.l@example.com"]
        assert not Organization.objects.exists()

    def test_proof_gives_organization_project_and_credit_once_and_signs_in(self) -> None:
        client = Client()
        link = sign_up(client)
        assert client.get(link).status_code == 200
        assert not Organization.objects.exists(), "opening the link alone proves nothing: scanners open links"
        answer = client.post(link, follow=True)
        client.post(link)

        assert User.objects.get().email == "ada.l@example.com"
        organization = Organization.objects.get()
        assert organization.name == "ada.l's organization"
        assert Member.objects.get(organization=organization).role == Role.OWNER
        assert Project.objects.get(organization=organization).is_default
        assert ledger.balance_nano(organization.id) == 5_000_000_000
        assert CreditGrant.objects.get().key == f"free-credit:organization:{organization.id}"
        assert answer.redirect_chain[-1][0] == reverse("portal:dashboard", args=[organization.slug])
        assert "Get started" in answer.content.decode()

    def test_organization_is_named_in_the_language_of_its_founder(self) -> None:
        client = Client(headers={"accept-language": "de"})
        client.post(sign_up(client))
        assert Organization.objects.get().name == "Organisation von ada.l"

    def test_mail_has_a_text_and_an_html_form(self) -> None:
        link = sign_up(Client())
        message: Any = mail.outbox[0]
        assert link in message.body
        assert link in message.alternatives[0][0]

    def test_used_link_says_so(self) -> None:
        client = Client()
        link = sign_up(client)
        client.post(link)
        assert "no longer works" in Client().get(link).content.decode()

    def test_short_password_is_refused_at_the_field(self) -> None:
        answer = Client().post(reverse("account_signup"), {"email": "ada@example.com", "password1": "short"})
        assert answer.context["form"].errors["password1"]
        assert not User.objects.exists()

    def test_taken_address_is_not_told_to_a_stranger(self) -> None:
        make_user("Ada")
        answer = Client().post(reverse("account_signup"), {"email": "ada@example.com", "password1": PASSWORD})
        assert answer.status_code == 302
        assert "already have an account" in mail.outbox[-1].subject
        assert User.objects.count() == 1


@pytest.mark.django_db
class TestFirstOrganization:
    def test_is_given_once(self) -> None:
        ada = make_user("Ada")
        assert provide_first_organization(ada) == provide_first_organization(ada)
        assert Organization.objects.count() == 1

    def test_second_organization_gets_no_second_credit_even_after_leaving_the_first(self) -> None:
        ada = make_user("Ada")
        create_organization(owner=ada, name="One")
        Member.objects.all().delete()
        second = create_organization(owner=ada, name="Two")
        assert ledger.balance_nano(second.id) == 0

    def test_names_that_make_the_same_slug_get_two_slugs(self) -> None:
        ada = make_user("Ada")
        slugs = {create_organization(owner=ada, name=name).slug for name in ("Acme", "ACME!", "???")}
        assert len(slugs) == 3
        assert "organization" in slugs

    def test_person_without_one_is_asked_to_make_one(self) -> None:
        client = Client()
        client.force_login(make_user("Ada"), backend="django.contrib.auth.backends.ModelBackend")
        assert client.get(reverse("portal:home")).headers["Location"] == reverse("portal:organization_new")
        answer = client.post(reverse("portal:organization_new"), {"name": "Acme"})
        assert answer.headers["Location"] == "/o/acme/"


class TestSignIn:
    def sign_in(self, email: str, password: str) -> Any:
        return Client().post(reverse("account_login"), {"login": email, "password": password})

    def test_right_password_leads_home(self, cast: Cast) -> None:
        assert self.sign_in("ADA@example.com", PASSWORD).status_code == 302

    def test_wrong_password_does_not_say_which_part_was_wrong(self, cast: Cast) -> None:
        known = self.sign_in("ada@example.com", "wrong").context["form"].non_field_errors()
        unknown = self.sign_in("nobody@example.com", "wrong").context["form"].non_field_errors()
        assert known
        assert known == unknown

    def test_unproven_address_is_sent_a_mail_instead(self, db: None) -> None:
        user = make_user("Ada")
        EmailAddress.objects.filter(user=user).update(verified=False)
        assert self.sign_in("ada@example.com", PASSWORD).headers["Location"] == reverse(
            "account_email_verification_sent"
        )

    def test_password_can_be_reset_by_mail(self, cast: Cast) -> None:
        client = Client()
        client.post(reverse("account_reset_password"), {"email": "ada@example.com"})
        link = re.search(r"http\S+/reset/\S+", str(mail.outbox[-1].body))
        assert link
        form = client.get(link.group(), follow=True)
        new = "another good password"
        client.post(form.redirect_chain[-1][0], {"password1": new, "password2": new})
        assert self.sign_in("ada@example.com", new).status_code == 302


def policy(answer: Any) -> str:
    return str(answer.headers["Content-Security-Policy"])


class TestPolicy:
    @pytest.mark.parametrize("path", ["/", "/models", "/accounts/login/", "/accounts/signup/", "/nowhere"])
    def test_public_pages_allow_nothing_inline_and_no_other_host(self, path: str, db: None) -> None:
        found = policy(Client().get(path))
        assert "unsafe" not in found
        assert "http" not in found
        assert "default-src 'self'" in found
        assert "frame-ancestors 'none'" in found

    def test_pages_of_members_are_as_strict(self, cast: Cast, signed_in: Any) -> None:
        for name in ("dashboard", "playground", "usage", "api_keys", "billing"):
            answer = signed_in(cast.ada).get(reverse(f"portal:{name}", args=[cast.organization.slug]))
            assert "unsafe" not in policy(answer), name
            body = answer.content.decode()
            assert not re.search(r"<[^>]+\s(style|on\w+)=", body), name
            assert not re.search(r"<script(?![^>]*(src=|application/json))", body), name

    def test_admin_alone_is_looser_and_still_refuses_inline_scripts(self, cast: Cast, signed_in: Any) -> None:
        found = policy(signed_in(cast.oda).get("/admin/"))
        scripts = next(part for part in found.split(";") if "script-src" in part)
        assert "unsafe-inline" not in scripts
