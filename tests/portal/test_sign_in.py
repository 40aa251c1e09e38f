"""Signing in: second factors, an issuer, known passwords, too many attempts, and the list of browsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import (
    TOTP,
    format_hotp_value,
    generate_totp_secret,
    hotp_value,
    yield_hotp_counters_from_time,
)
from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from portal.audit.models import AuditEvent
from portal.organizations.models import Member
from portal.organizations.services import set_two_factor_required
from portal.users.models import User
from portal.users.passwords import KnownPasswordValidator
from portal.users.sessions import describe
from tests.factories.portal import PASSWORD, Cast
from tests.fakes.oidc import CLIENT_ID, CLIENT_SECRET, Issuer

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture(autouse=True)
def no_rates() -> None:
    cache.clear()


def log_in(email: str, password: str = PASSWORD, client: Client | None = None, **headers: str) -> Any:
    client = client or Client(headers={"user-agent": FIREFOX})
    answer = client.post(reverse("account_login"), {"login": email, "password": password}, **headers)
    return client, answer


def code_of(secret: str) -> str:
    """What an authenticator app shows now."""
    counters = list(yield_hotp_counters_from_time())
    counter = counters[len(counters) // 2]
    return str(format_hotp_value(hotp_value(secret, counter)))


class TestPasswords:
    @pytest.mark.parametrize(
        "password",
        ["password1!", "Passw0rd123", "QWERTY12345", "iloveyou!!", "m0nkeymonkey", "TokenFactory2026", "letmein..."],
    )
    def test_known_ones_are_refused_also_in_disguise(self, password: str) -> None:
        with pytest.raises(ValidationError, match="attackers try first"):
            KnownPasswordValidator().validate(password)

    @pytest.mark.parametrize("password", [PASSWORD, "Tr4vel-quiet-Otter", "zhx7!mmQe2vK", "blue horse 47 lamp"])
    def test_others_are_taken(self, password: str) -> None:
        KnownPasswordValidator().validate(password)

    def test_sign_up_says_so_at_the_field(self, db: None) -> None:
        answer = Client().post(reverse("account_signup"), {"email": "eve@example.com", "password1": "Password2026!"})
        assert "attackers try first" in answer.content.decode()
        assert not User.objects.filter(email="eve@example.com").exists()


class TestSecondFactor:
    def test_with_one_a_password_alone_opens_nothing(self, cast: Cast) -> None:
        TOTP.activate(cast.ada, generate_totp_secret())
        client, answer = log_in(cast.ada.email)
        assert answer.url == reverse("mfa_authenticate")
        assert client.get(reverse("portal:dashboard", args=[cast.organization.slug])).status_code == 302
        page = client.get(reverse("mfa_authenticate")).content.decode()
        # Offered to whoever has one: tests/browser/test_security_keys.py.
        assert "security key" not in page
        assert "Cancel" in page

    def test_an_app_is_added_on_its_page_and_asked_for_at_the_next_sign_in(self, cast: Cast) -> None:
        client, _ = log_in(cast.ada.email)
        client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
        page = client.get(reverse("mfa_activate_totp"))
        secret = page.context["form"].secret
        assert client.post(reverse("mfa_activate_totp"), {"code": "000000"}).status_code == 200
        assert client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)}).status_code == 302
        assert Authenticator.objects.filter(user=cast.ada, type=Authenticator.Type.TOTP).exists()

        again, answer = log_in(cast.ada.email)
        assert answer.url == reverse("mfa_authenticate")
        wrong = again.post(reverse("mfa_authenticate"), {"code": "000000"})
        assert (wrong.status_code, "_auth_user_id" in again.session) == (200, False)
        code = code_of(secret)
        assert again.post(reverse("mfa_authenticate"), {"code": code}).status_code == 302
        assert "_auth_user_id" in again.session
        # A code opens one session: who looked over a shoulder gets nothing.
        third, _ = log_in(cast.ada.email)
        assert third.post(reverse("mfa_authenticate"), {"code": code}).status_code == 200
        assert "_auth_user_id" not in third.session

    def test_secret_and_recovery_codes_are_sealed_and_work(self, cast: Cast) -> None:
        secret = generate_totp_secret()
        TOTP.activate(cast.ada, secret)
        codes = RecoveryCodes.activate(cast.ada).generate_codes()
        for authenticator in Authenticator.objects.all():
            assert secret not in str(authenticator.data)
            assert not any(code in str(authenticator.data) for code in codes)
        client, _ = log_in(cast.ada.email)
        answer = client.post(reverse("mfa_authenticate"), {"code": codes[0]})
        assert answer.status_code == 302
        assert client.get(reverse("portal:dashboard", args=[cast.organization.slug])).status_code == 200

    def test_organization_can_ask_for_one(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        TOTP.activate(cast.ada, generate_totp_secret())
        set_two_factor_required(organization=cast.organization, is_required=True, actor=cast.ada)
        address = reverse("portal:dashboard", args=[cast.organization.slug])
        assert signed_in(cast.ada).get(address).status_code == 200
        ben = signed_in(cast.ben)
        asked = ben.get(address, follow=True)
        assert asked.redirect_chain[0][0] == reverse("mfa_index")
        assert "requires two-factor authentication" in asked.content.decode()
        refused = ben.get(f"/api/organizations/{cast.organization.slug}/keys")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "two_factor_required")
        TOTP.activate(cast.ben, generate_totp_secret())
        assert ben.get(address).status_code == 200

    def test_nobody_locks_themselves_out(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        address = reverse("portal:two_factor", args=[cast.organization.slug])
        page = signed_in(cast.ada).post(address, {"required": "1"}, follow=True)
        assert "lock yourself out" in page.content.decode()
        cast.organization.refresh_from_db()
        assert not cast.organization.requires_two_factor

    def test_page_offers_all_three_kinds(self, cast: Cast) -> None:
        client, _ = log_in(cast.ada.email)
        page = client.get(reverse("mfa_index")).content.decode()
        for words in ("Authenticator App", "Security Keys", "Recovery Codes"):
            assert words in page


class TestIssuer:
    @pytest.fixture
    def issuer(self, settings: Any, db: None) -> Iterator[Issuer]:
        server = Issuer()
        app = {
            "provider_id": "oidc",
            "name": "Example SSO",
            "client_id": CLIENT_ID,
            "secret": CLIENT_SECRET,
            "settings": {"server_url": server.url},
        }
        settings.OIDC_ISSUER, settings.OIDC_NAME = server.url, "Example SSO"
        settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}
        yield server
        server.shutdown()
        server.server_close()

    def _sign_in(self, issuer: Issuer, **person: Any) -> tuple[Client, Any]:
        issuer.person = {"sub": "1", "email": "eve@example.com", "email_verified": True, "name": "Eve", **person}
        client = Client()
        assert "Continue with Example SSO" in client.get(reverse("account_login")).content.decode()
        there = client.get(reverse("openid_connect_login", args=["oidc"]))
        assert there.url.startswith(f"{issuer.url}/authorize")
        back = issuer.authorize(there.url)
        return client, client.get(back.removeprefix("http://testserver"), follow=True)

    def test_a_new_person_gets_an_organization_and_no_mail_to_confirm(self, issuer: Issuer) -> None:
        _, page = self._sign_in(issuer)
        user = User.objects.get(email="eve@example.com")
        assert user.name == "Eve"
        assert EmailAddress.objects.get(user=user).verified
        member = Member.objects.get(user=user)
        assert page.redirect_chain[-1][0] == reverse("portal:dashboard", args=[member.organization.slug])

    def test_a_known_person_is_the_same_one(self, issuer: Issuer, cast: Cast) -> None:
        client, _ = self._sign_in(issuer, email=cast.ada.email)
        assert client.get(reverse("portal:dashboard", args=[cast.organization.slug])).status_code == 200
        assert User.objects.filter(email=cast.ada.email).count() == 1

    def test_an_address_that_the_issuer_does_not_vouch_for_opens_nothing(self, issuer: Issuer, cast: Cast) -> None:
        client, _ = self._sign_in(issuer, email=cast.ada.email, email_verified=False)
        assert client.get(reverse("portal:dashboard", args=[cast.organization.slug])).status_code in (302, 404)

    def test_a_second_factor_is_asked_for_here_too(self, issuer: Issuer, cast: Cast) -> None:
        TOTP.activate(cast.ada, generate_totp_secret())
        _, page = self._sign_in(issuer, email=cast.ada.email)
        assert page.redirect_chain[-1][0] == reverse("mfa_authenticate")

    @pytest.mark.parametrize("answer", ["code=x&state=forged", "error=access_denied"])
    def test_who_is_not_signed_in_is_led_back(self, issuer: Issuer, answer: str) -> None:
        page = Client().get(f"{reverse('openid_connect_callback', args=['oidc'])}?{answer}")
        assert page.status_code == 401
        assert f'href="{reverse("account_login")}"' in page.content.decode()
        assert "You are not signed in" in page.content.decode()


class TestAttempts:
    def test_too_many_wrong_passwords_from_one_address_are_refused(self, cast: Cast, settings: Any) -> None:
        settings.AXES_FAILURE_LIMIT = 3
        for _ in range(3):
            log_in(cast.ada.email, "wrong")
        client, answer = log_in(cast.ada.email)
        assert answer.status_code != 302
        assert "_auth_user_id" not in client.session

    def test_behind_a_trusted_proxy_each_client_has_attempts_of_its_own(self, cast: Cast, settings: Any) -> None:
        from ipaddress import ip_network

        settings.AXES_FAILURE_LIMIT = 3
        settings.TRUSTED_PROXIES = [ip_network("127.0.0.1")]
        for _ in range(3):
            log_in(cast.ada.email, "wrong", HTTP_X_FORWARDED_FOR="203.0.113.9")
        client, _ = log_in(cast.ada.email, HTTP_X_FORWARDED_FOR="198.51.100.1")
        assert "_auth_user_id" in client.session


class TestBrowsers:
    def test_another_browser_is_listed_and_signed_out(self, cast: Cast) -> None:
        here, _ = log_in(cast.ada.email)
        there, _ = log_in(cast.ada.email)
        page = here.get(reverse("portal:sessions"))
        assert [each.is_current for each in page.context["browsers"]] == [True, False]
        assert "Firefox on Linux" in page.content.decode()
        other = page.context["browsers"][1].session
        assert here.post(reverse("portal:session_end", args=[other.id])).status_code == 302
        dashboard = reverse("portal:dashboard", args=[cast.organization.slug])
        assert there.get(dashboard).status_code == 302
        assert here.get(dashboard).status_code == 200
        assert AuditEvent.objects.get(action="session.ended").before["browser"] == "Firefox on Linux"

    def test_everywhere_else_at_once(self, cast: Cast) -> None:
        here, _ = log_in(cast.ada.email)
        others = [log_in(cast.ada.email)[0] for _ in range(2)]
        here.post(reverse("portal:sessions_end"))
        assert UserSession.objects.filter(user=cast.ada).count() == 1
        assert all(each.get(reverse("portal:sessions")).status_code == 302 for each in others)

    def test_sessions_of_others_are_not_there(self, cast: Cast) -> None:
        log_in(cast.ada.email)
        ben, _ = log_in(cast.ben.email)
        theirs = UserSession.objects.get(user=cast.ada)
        assert ben.post(reverse("portal:session_end", args=[theirs.id])).status_code == 404

    @pytest.mark.parametrize(
        ("user_agent", "name"),
        [
            (FIREFOX, "Firefox on Linux"),
            (
                "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0",
                "Edge on Windows",
            ),
            ("curl/8.5", "curl/8.5"),
            ("", "Unknown program"),
        ],
    )
    def test_browsers_have_names(self, user_agent: str, name: str) -> None:
        assert describe(user_agent) == name
