"""How the portal's templates print icons, money, counts, durations, times and form fields."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms, template
from django.forms import BoundField
from django.forms.utils import flatatt
from django.templatetags.static import static
from django.utils import timezone
from django.utils.formats import date_format, get_format, localize, number_format
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from billing.money import format_minor, format_nano
from portal.billing_pages.wording import reason_text
from portal.operations.titles import title_of

register = template.Library()

WIDGET_CLASSES = {
    forms.Select: "select",
    forms.Textarea: "textarea",
    forms.CheckboxInput: "",
    forms.HiddenInput: "",
}


@register.simple_tag
def icon(name: str) -> SafeString:
    """An icon of the sprite, hidden from screen readers: the text beside it says what it means."""
    sprite = static("img/icons.svg")
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', sprite, name)


# Labels that Django makes of the names of fields.
_LABELS = (
    *(gettext_noop("Name"), gettext_noop("Reason"), gettext_noop("Role"), gettext_noop("Project")),
    *(gettext_noop("Amount"), gettext_noop("Model"), gettext_noop("Status"), gettext_noop("Description")),
    *(gettext_noop("Time zone"), gettext_noop("Expires"), gettext_noop("About"), gettext_noop("Language")),
    *(gettext_noop("Legal name"), gettext_noop("Postal code"), gettext_noop("City"), gettext_noop("Country")),
    *(gettext_noop("Range"), gettext_noop("Group"), gettext_noop("Deployment"), gettext_noop("Organization")),
    *(gettext_noop("Code"), gettext_noop("Currency"), gettext_noop("Percent"), gettext_noop("Quantity")),
    *(gettext_noop("Reference"), gettext_noop("Action"), gettext_noop("Kind"), gettext_noop("Address")),
    *(gettext_noop("Display name"), gettext_noop("Context tokens"), gettext_noop("Upstream model")),
    *(gettext_noop("Weight"), gettext_noop("Input price"), gettext_noop("Cached input price")),
    *(gettext_noop("Output price"), gettext_noop("Effective from"), gettext_noop("Max output tokens")),
    *(gettext_noop("Default max output tokens"), gettext_noop("Is published"), gettext_noop("Is enabled")),
    gettext_noop("Url"),
)
_AMOUNT = re.compile(r"(-?)([^\d-]+)(\d.*)")


def _local(number: str) -> str:
    """An English number in the reader's form: 1,234.5 as 1.234,5."""
    return number.translate({44: get_format("THOUSAND_SEPARATOR"), 46: get_format("DECIMAL_SEPARATOR")})


def _local_money(amount: str) -> str:
    """An English amount in the reader's form. Where the decimal sign is a comma, the currency stands behind."""
    found = _AMOUNT.fullmatch(amount)
    if get_format("DECIMAL_SEPARATOR") == "." or found is None:
        return amount
    sign, currency, number = found.groups()
    return f"{sign}{_local(number)}\N{NO-BREAK SPACE}{currency.strip()}"


@register.filter
def money(amount_nano: int | None, currency: str = "USD") -> str:
    """The exact amount, from nano-units."""
    return "–" if amount_nano is None else _local_money(format_nano(amount_nano, currency))


@register.filter
def money_short(amount_nano: int | None, currency: str = "USD") -> str:
    """For headings: to the cent, or to four digits when it is under a cent. The exact amount belongs in a title."""
    if amount_nano is None:
        return "–"
    step = 10_000_000 if abs(amount_nano) >= 10_000_000 or amount_nano == 0 else 100_000
    rounded = (abs(amount_nano) + step // 2) // step * step
    if rounded == 0 and amount_nano:
        return _local_money(format_nano(amount_nano, currency))
    return _local_money(format_nano(rounded if amount_nano >= 0 else -rounded, currency))


@register.filter
def cents(amount_minor: int | None, currency: str = "USD") -> str:
    return "–" if amount_minor is None else _local_money(format_minor(amount_minor, currency))


@register.filter
def count(number: int | None) -> str:
    return "–" if number is None else number_format(number, force_grouping=True)


@register.filter
def signed(number: int | None) -> str:
    """A difference: with its sign, 0 as it is."""
    return "–" if number is None else ("+" if number > 0 else "") + number_format(number, force_grouping=True)


@register.filter
def count_short(number: int | None) -> str:
    """1,234 as it is; 12,345 as 12.3K; 1,234,567 as 1.23M."""
    if number is None:
        return "–"
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (10_000, "K")):
        if number >= size:
            divisor = 1_000 if unit == "K" else size
            short = f"{number / divisor:.3g}" if number / divisor < 1000 else f"{number / divisor:,.0f}"
            return f"{_local(short)}{unit}"
    return number_format(number, force_grouping=True)


@register.filter
def duration(milliseconds: float | None) -> str:
    """Milliseconds as people read them: 87 ms, 1.24 s, 2 min 5 s."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 60_000:
        return f"{_local(f'{milliseconds / 1000:.2f}')} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


@register.filter
def percent(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return "100 %" if ratio == 1 else _local(f"{min(ratio, 0.99999) * 100:.3f}".rstrip("0").rstrip(".")) + " %"


@register.filter
def percent_short(ratio: float) -> str:
    return _local(f"{ratio * 100:.1f}") + " %"


@register.filter
def failure_title(code: str) -> str:
    """What a refusal or failure is called."""
    return str(title_of(code))


@register.filter
def booked_for(reason: str) -> str:
    """Why billing booked something: its own codes in words, and what a person typed as it is."""
    return reason_text(reason)


@register.filter
def lookup(names: dict[int, str], key: int | None) -> str:
    """The name of an id, or a dash."""
    return names.get(key, "–") if key is not None else "–"


@register.filter
def item(values: dict[int, Any], key: int) -> Any:
    """The value of a key, or None."""
    return values.get(key)


@register.filter
def age(period: timedelta) -> str:
    """A period in its largest unit."""
    seconds = period.total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


@register.filter
def when(moment: datetime | None) -> SafeString | str:
    """Date and time in the reader's zone; the exact UTC time is in the title."""
    return _time(moment, "H:i")


@register.filter
def when_exact(moment: datetime | None) -> SafeString | str:
    return _time(moment, "H:i:s")


@register.filter
def day(moment: datetime | None) -> SafeString | str:
    return _time(moment, "")


@register.filter
def month(period: str) -> str:
    """2026-10 as Oct 2026."""
    return date_format(date.fromisoformat(f"{period}-01"), "M Y")


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """Short and relative: just now, 5 min ago, 3 h ago, else the day."""
    if moment is None:
        return _("never")
    seconds = (timezone.now() - moment).total_seconds()
    if seconds < 60:
        text = _("just now")
    elif seconds < 3600:
        text = _("%(count)d min ago") % {"count": seconds // 60}
    elif seconds < 86_400:
        text = _("%(count)d h ago") % {"count": seconds // 3600}
    else:
        return day(moment)
    return _tagged(moment, text)


def _time(moment: datetime | None, clock: str) -> SafeString | str:
    """The day, without its year when that is the present one, and the time in the form `clock`."""
    if moment is None:
        return "–"
    local = timezone.localtime(moment)
    form = _("j M") if local.year == timezone.localtime().year else _("j M Y")
    return _tagged(moment, date_format(local, f"{form}, {clock}" if clock else form))


def _tagged(moment: datetime, text: str) -> SafeString:
    exact = moment.astimezone(UTC)
    title = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', exact.isoformat(), title, text)


@register.inclusion_tag("portal/_field.html")
def field(bound: BoundField, label: str | None = None, hint: str | None = None, **attributes: Any) -> dict[str, Any]:
    """A form field with its label, hint and errors. Attributes are the widget's; `_` in a name becomes `-`."""
    widget = bound.field.widget
    kind = next((name for base, name in WIDGET_CLASSES.items() if isinstance(widget, base)), "input")
    attrs = {name.replace("_", "-"): value for name, value in attributes.items()}
    if kind:
        attrs["class"] = kind
    if bound.errors:
        attrs["aria-errormessage"] = f"{bound.auto_id}_error"
    return {
        "bound": bound,
        "widget": bound.as_widget(attrs=attrs),
        # What Django made of the field's name is translated here; other labels are already.
        "label": _(str(bound.label)) if label is None else label,
        "hint": bound.help_text if hint is None else hint,
        "is_check": isinstance(widget, forms.CheckboxInput),
    }


@register.filter
def options(groups: list[tuple[str | None, list[dict[str, Any]], int]]) -> SafeString:
    """The options of a select in their groups as Django's widget has them, each on a line of its own. Written in one
    go: a page may have a thousand."""
    parts = []
    for name, choices, _index in groups:
        if name:
            parts.append(f'\n  <optgroup label="{conditional_escape(name)}">')
        for each in choices:
            label = each["label"] if isinstance(each["label"], str) else localize(each["label"])
            attributes = flatatt(each["attrs"]) if each["attrs"] else ""
            value = conditional_escape(str(each["value"]))
            parts.append(f'\n  <option value="{value}"{attributes}>{conditional_escape(label)}</option>')
        if name:
            parts.append("\n  </optgroup>")
    return SafeString("".join(parts))


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: Any) -> str:
    """The page's query string with some parameters replaced, or removed when None or empty."""
    parameters = dict(context["request"].GET.lists())
    for name, value in changes.items():
        if value in (None, ""):
            parameters.pop(name, None)
        else:
            parameters[name] = [str(value)]
    return f"?{urlencode(parameters, doseq=True)}" if parameters else "?"


@register.simple_tag(takes_context=True)
def narrowed(context: template.Context, name: str, value: object) -> str:
    """The page's query string with one more filter, whose name is only known to the view."""
    return query(context, **{name: value})
