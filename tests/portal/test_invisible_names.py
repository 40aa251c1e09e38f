"""No name and no reason holds what nobody can see: it would look like another, or turn around the text beside it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allauth.socialaccount.models import SocialLogin
from django.core.exceptions import ValidationError
from django.forms import BaseForm
from django.test import Client, RequestFactory
from django.urls import reverse

import portal
from portal.api_keys.models import ApiKey
from portal.organizations.models import Project
from portal.plain_text import refuse_invisible
from portal.users.adapter import SocialAccountAdapter
from portal.users.models import User
from tests.factories.portal import Cast

Browser = Callable[..., Client]
REVERSED = "invoice\u202efdp.exe"


@pytest.mark.parametrize(
    "code", [0x09, 0x7F, 0xAD, 0x200B, 0x200E, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF, 0x3164]
)
def test_what_is_invisible_is_refused_with_its_place(code: int) -> None:
    with pytest.raises(ValidationError, match=rf"Character 3 is invisible \(U\+{code:04X}\)"):
        refuse_invisible(f"ab{chr(code)}c")


@pytest.mark.parametrize("name", ["Łódź & Söhne", "株式会社 計算", "می\u200cخواهم", "👩\u200d💻 team", "עברית", "a b"])
def test_letters_of_every_script_and_emoji_are_taken(name: str) -> None:
    refuse_invisible(name)


# What fields of forms that keep a name, a description, an address on invoices or a reason are called.
KEPT = {"name", "display_name", "description", "legal_name", "address_line1", "address_line2", "postal_code", "city"}
KEPT |= {"region", "tax_id", "tax_exemption", "code", "reason", "reference", "waiver"}
# Models' names are ASCII, their descriptions have lines, and a code that is redeemed is compared with those that exist.
OTHERS = {("ModelForm", "name"), ("ModelForm", "description"), ("PromoForm", "code")}


def fields_that_keep_texts() -> Iterator[tuple[str, str, list[Any]]]:
    """Of each form of the portal: its name, the field's name, and the field's validators."""
    modules = [each.name for each in pkgutil.walk_packages(portal.__path__, "portal.") if each.name.endswith("forms")]
    for module in map(importlib.import_module, modules):
        for name, form in inspect.getmembers(module, inspect.isclass):
            if not issubclass(form, BaseForm) or form.__module__ != module.__name__:
                continue
            for field in KEPT & set(form.base_fields):
                if (name, field) not in OTHERS:
                    kept_in = getattr(form, "_meta", None)
                    model = kept_in.model._meta.get_field(field).validators if kept_in else []
                    yield name, field, [*form.base_fields[field].validators, *model]


def test_every_form_that_keeps_such_a_text_refuses_them() -> None:
    found = {(form, field): refuse_invisible in validators for form, field, validators in fields_that_keep_texts()}
    assert {("WebhookForm", "description"), ("BillingDetailsForm", "city"), ("ProfileForm", "name")} <= set(found)
    assert {("SuspensionForm", "reason"), ("QuotaForm", "reason"), ("PeriodForm", "waiver")} <= set(found)
    assert found == dict.fromkeys(found, True)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("page", "others"),
    [
        ("settings", {"time_zone": "UTC"}),
        ("project_new", {}),
        ("api_key_new", {}),
        ("management_keys", {"role": "viewer", "expires": "90"}),
    ],
)
def test_a_form_says_so_at_its_field(page: str, others: dict[str, str], cast: Cast, signed_in: Browser) -> None:
    if page == "api_key_new":
        others = {"project": str(cast.project.id)}
    address = reverse(f"portal:{page}", args=[cast.organization.slug])
    answer = signed_in(cast.ada).post(address, {"name": REVERSED, **others})
    assert answer.status_code == 400
    assert "Character 8 is invisible (U+202E)" in answer.content.decode()
    assert signed_in(cast.ada).post(address, {"name": "visible", **others}).status_code in (200, 302)


@pytest.mark.django_db
def test_own_name_and_a_new_organization_too(cast: Cast, signed_in: Browser) -> None:
    for address in (reverse("portal:profile"), reverse("portal:organization_new")):
        answer = signed_in(cast.ada).post(address, {"name": REVERSED})
        assert "Character 8 is invisible (U+202E)" in answer.content.decode()


@pytest.mark.django_db
def test_of_a_webhook_and_of_the_invoices_address_too(cast: Cast, signed_in: Browser) -> None:
    browser: Any = signed_in(cast.ada)
    slug = cast.organization.slug
    hook = {"url": "https://example.com/hook", "description": REVERSED}
    details = {"email": "ada@example.com", "legal_name": REVERSED}
    for page, fields in (("webhooks", hook), ("billing_details", details)):
        answer = browser.post(reverse(f"portal:{page}", args=[slug]), fields)
        assert answer.status_code == 400
        assert "Character 8 is invisible (U+202E)" in answer.content.decode()
    for method, path, fields in (("post", "webhooks", hook), ("patch", "billing-details", {"legal_name": REVERSED})):
        answer = getattr(browser, method)(f"/api/organizations/{slug}/{path}", fields, "application/json")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("description", "legal_name")
        assert "Character 8 is invisible (U+202E)" in answer.json()["error"]["message"]


@pytest.mark.django_db
def test_a_name_from_single_sign_on_is_kept_without_them(rf: RequestFactory) -> None:
    """Its owner cannot be asked, and is not kept out for it."""
    login = SocialLogin(user=User())
    person = SocialAccountAdapter().populate_user(rf.get("/"), login, {"name": "Ada\u2028Love\u202elace\u200b"})
    assert person.name == "Ada Lovelace"


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/organizations", "projects", "keys"])
def test_a_program_is_told_the_field(path: str, cast: Cast, signed_in: Browser) -> None:
    address = path if path.startswith("/") else f"/api/organizations/{cast.organization.slug}/{path}"
    browser: Any = signed_in(cast.ada)
    keys, projects = ApiKey.objects.count(), Project.objects.count()
    others = {"project": cast.project.slug} if path == "keys" else {}
    answer = browser.post(address, {"name": REVERSED, **others}, "application/json")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "name"
    assert "Character 8 is invisible (U+202E)" in error["message"]
    assert (ApiKey.objects.count(), Project.objects.count()) == (keys, projects)
    assert browser.post(address, {"name": "visible", **others}, "application/json").status_code == 201


@pytest.mark.django_db
def test_renaming_a_project_says_so(cast: Cast, signed_in: Browser) -> None:
    address = reverse("portal:project_rename", args=[cast.organization.slug, cast.project.slug])
    answer = signed_in(cast.ada).post(address, {"name": REVERSED}, follow=True)
    assert "Character 8 is invisible (U+202E)" in answer.content.decode()
    cast.project.refresh_from_db()
    assert cast.project.name != REVERSED


@pytest.mark.django_db
def test_a_reason_too_on_pages_and_for_programs(cast: Cast, signed_in: Browser) -> None:
    slug, project = cast.organization.slug, cast.project
    operator: Any = signed_in(cast.oda)
    owner: Any = signed_in(cast.ada)
    page = reverse("portal:operator_suspension", args=[slug])
    answers = [operator.post(page, {"suspend": "1", "reason": REVERSED})]
    body = {"is_suspended": True, "reason": REVERSED}
    answers.append(operator.put(f"/api/operator/organizations/{slug}/suspension", body, "application/json"))
    limit = {"what": "requests:minute", "amount": "60", "reason": REVERSED}
    answers.append(owner.post(f"/api/organizations/{slug}/limits", limit, "application/json"))
    for answer in answers:
        assert answer.status_code == 400
        assert "Character 8 is invisible (U+202E)" in answer.content.decode()
    archive = {"confirmation": project.name, "reason": REVERSED}
    page = reverse("portal:project_archive", args=[slug, project.slug])
    assert "Character 8 is invisible" in owner.post(page, archive, follow=True).content.decode()
    cast.organization.refresh_from_db()
    project.refresh_from_db()
    assert not cast.organization.is_suspended
    assert project.archived_at is None
