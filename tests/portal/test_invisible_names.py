"""No name holds what nobody can see: it would look like another name, or turn around the text beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from portal.api_keys.models import ApiKey
from portal.organizations.models import Project
from portal.plain_text import refuse_invisible
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
