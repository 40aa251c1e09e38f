"""Refuses passwords that attackers try first, without asking anybody: the list ships with Django.

It holds the 20,000 most frequent passwords of known breaches. A password is also refused when it is one of them in
disguise: in another case, with letters written as digits, or with digits and signs before or after.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.password_validation import CommonPasswordValidator
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

_DISGUISE = str.maketrans("013457@$!", "oieastasi")
_TRIMMED = "0123456789!?.,;:-_*#@$%&+= "
# Shorter cores are parts of many good passwords.
_SHORTEST = 5
_OURS = ("tokenfactory", "token factory")


class KnownPasswordValidator(CommonPasswordValidator):
    def validate(self, password: str, user: Any = None) -> None:
        if any(form in self.passwords or form in _OURS for form in _forms(password)):
            raise ValidationError(
                _(
                    "This password, or one much like it, is on the lists that attackers try first. Choose another: "
                    "several unrelated words are strong and easy to remember."
                ),
                code="password_known",
            )

    def get_help_text(self) -> str:
        return str(_("Known and frequent passwords are refused, also in disguise."))


def _forms(password: str) -> set[str]:
    """The password as it is listed: in lower case, undisguised, and without what stands around its core."""
    lower = password.lower().strip()
    forms = {lower, lower.translate(_DISGUISE)}
    for core in (lower.strip(_TRIMMED), lower.strip(_TRIMMED).translate(_DISGUISE)):
        if len(core) >= _SHORTEST:
            forms.add(core)
            # The same word twice is no better than once.
            half = core[: len(core) // 2]
            if half * 2 == core:
                forms.add(half)
    return forms
