"""A day that a person names in a form."""

from __future__ import annotations

from datetime import date
from typing import Any

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.utils.translation import gettext_lazy as _

# Outside of these, a day has no beginning or no end in every zone that Python could name.
FIRST, LAST = date(1970, 1, 1), date(2999, 12, 31)


class DayField(forms.DateField):
    """With the browser's own calendar; a day that no call, credit or event could have is refused at the field."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("widget", forms.DateInput({"type": "date", "min": f"{FIRST}", "max": f"{LAST}"}))
        super().__init__(**options)
        message = _("Enter a day from 1970 to 2999.")
        self.validators += [MinValueValidator(FIRST, message), MaxValueValidator(LAST, message)]
