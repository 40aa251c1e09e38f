"""The operator's pages about limit templates."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from portal import access
from portal.errors import NameTaken, NotPossible
from portal.limit_templates import selectors, services
from portal.limit_templates.content import content_of
from portal.limit_templates.effects import effects, trials
from portal.limit_templates.forms import (
    ApplyForm,
    ChangeForm,
    RetirementForm,
    SelectionForm,
    TemplateForm,
    WithdrawalForm,
    initial_of,
    limit_rows,
)
from portal.limit_templates.models import LimitTemplate
from portal.operator import rows
from portal.pages import operator_page

SECTION = "operator_limit_templates"
PAGE_SIZE = 50
# Organizations whose effect a preview shows one by one, and runs that a template's page shows.
SHOWN = 20
RUNS_SHOWN = 5


@login_required
def templates(request: HttpRequest) -> HttpResponse:
    access.require_operator(request.user)
    context = {"rows": selectors.templates(), "currency": selectors.only_currency()}
    return operator_page(request, SECTION, "portal/limit_templates/list.html", context)


@login_required
def new(request: HttpRequest) -> HttpResponse:
    actor = access.require_operator(request.user)
    form, limits = TemplateForm(request.POST or None), limit_rows(request.POST or None)
    if request.method == "POST" and form.is_valid() and limits.is_valid():
        data = form.cleaned_data
        try:
            made = services.make_template(
                name=data["name"], content=form.content(limits), reason=data["reason"], actor=actor
            )
        except NameTaken as error:
            form.add_error("name", str(error))
        else:
            messages.success(request, _("The template is made. Nobody has it yet."))
            return redirect("portal:operator_limit_template", made.id)
    return _form_page(request, {"form": form, "limits": limits})


@login_required
def change(request: HttpRequest, template_id: int) -> HttpResponse:
    """A new version; then what moving those who use the template would change, if that is wanted."""
    actor = access.require_operator(request.user)
    template = rows.limit_template(template_id)
    row = selectors.template_row(template)
    content = content_of(row.version)
    form = ChangeForm(request.POST or None, initial=initial_of(template, content))
    limits = limit_rows(request.POST or None, content)
    if request.method == "POST" and form.is_valid() and limits.is_valid():
        data = form.cleaned_data
        try:
            version = services.change_template(
                template=template, name=data["name"], content=form.content(limits), reason=data["reason"], actor=actor
            )
        except NameTaken as error:
            form.add_error("name", str(error))
        except NotPossible as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, _("%(version)s is saved.") % {"version": version})
            if data["move"] == "move":
                return _to_preview(template, uses=str(template.id))
            return redirect("portal:operator_limit_template", template.id)
    return _form_page(request, {"form": form, "limits": limits, "row": row})


def _form_page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    status = 400 if context["form"].errors or context["limits"].total_error_count() else 200
    context["currency"] = selectors.only_currency()
    return operator_page(request, SECTION, "portal/limit_templates/form.html", context, status=status)


def _to_preview(template: LimitTemplate, *, uses: str) -> HttpResponse:
    response = redirect("portal:operator_limit_template_apply", template.id)
    response["Location"] += f"?uses={uses}"
    return response


@login_required
def template(request: HttpRequest, template_id: int) -> HttpResponse:
    """What it says, its versions, who uses which, and its last runs; while one goes on, that part renews itself."""
    access.require_operator(request.user)
    found = rows.limit_template(template_id)
    runs = list(selectors.runs(found)[:RUNS_SHOWN])
    context: dict[str, Any] = {"template": found, "runs": runs, "is_running": any(not run.is_over for run in runs)}
    if request.headers.get("HX-Request") and not request.headers.get("HX-Boosted"):
        part = render(request, "portal/limit_templates/_runs.html", context)
        if not context["is_running"]:
            # The rest of the page says who has which version.
            part["HX-Refresh"] = "true"
        return part
    page = Paginator(selectors.uses(found), PAGE_SIZE).get_page(request.GET.get("page"))
    context |= {
        "row": selectors.template_row(found),
        "versions": selectors.versions(found),
        "page": page,
        "currency": selectors.only_currency(),
        "selection": SelectionForm(),
        "retirement": RetirementForm(),
    }
    return operator_page(request, SECTION, "portal/limit_templates/template.html", context)


@login_required
@require_POST
def default(request: HttpRequest, template_id: int) -> HttpResponse:
    actor = access.require_operator(request.user)
    found = rows.limit_template(template_id)
    is_default = request.POST.get("is_default") == "1"
    try:
        services.set_default(template=found, is_default=is_default, actor=actor)
    except NotPossible as error:
        messages.error(request, str(error))
        return redirect("portal:operator_limit_template", template_id)
    messages.success(
        request,
        _("New organizations begin with %(name)s.") % {"name": found.name}
        if is_default
        else _("New organizations begin without a template."),
    )
    return redirect("portal:operator_limit_template", template_id)


@login_required
@require_POST
def retire(request: HttpRequest, template_id: int) -> HttpResponse:
    """Retires, or brings back when it is retired."""
    actor = access.require_operator(request.user)
    found = rows.limit_template(template_id)
    form = RetirementForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Say why."))
        return redirect("portal:operator_limit_template", template_id)
    reason = form.cleaned_data["reason"]
    try:
        if request.POST.get("is_retired") == "1":
            services.retire_template(template=found, actor=actor, reason=reason)
            done = _("%(name)s is retired. Who has it keeps it.")
        else:
            services.restore_template(template=found, actor=actor, reason=reason)
            done = _("%(name)s can be given again.")
    except NotPossible as error:
        messages.error(request, str(error))
    else:
        messages.success(request, done % {"name": found.name})
    return redirect("portal:operator_limit_template", template_id)


@login_required
def apply(request: HttpRequest, template_id: int) -> HttpResponse:
    """GET shows what the newest version would change for those selected; POST gives it to them."""
    actor = access.require_operator(request.user)
    found = rows.limit_template(template_id)
    if found.is_retired:
        messages.error(request, _("%(name)s is retired. Bring it back first.") % {"name": found.name})
        return redirect("portal:operator_limit_template", template_id)
    version = selectors.newest_version(found)
    if request.method == "POST":
        form = ApplyForm(request.POST)
        if form.is_valid():
            chosen, data = form.cleaned_data["organization"], form.cleaned_data
            try:
                if data["version"] != version.id:
                    services.require_newest(rows.template_version(found, data["version"]))
                if chosen is not None:
                    services.apply_template(organization=chosen, version=version, reason=data["reason"], actor=actor)
                    words = {"name": chosen.name, "version": version}
                    messages.success(request, _("%(name)s has %(version)s.") % words)
                    return redirect("portal:operator_organization", chosen.slug)
                services.start_run(
                    version=version, search=data["q"], uses=data["uses"], reason=data["reason"], actor=actor
                )
            except NotPossible as error:
                messages.error(request, str(error))
                return redirect("portal:operator_limit_template", found.id)
            return redirect("portal:operator_limit_template", found.id)
    else:
        form = ApplyForm(
            {name: request.GET.get(name, "") for name in SelectionForm.base_fields} | {"version": version.id}
        )
        # The reason is asked for with the preview.
        form.full_clean()
        form.errors.pop("reason", None)
    return _preview_page(request, found, form)


def _preview_page(request: HttpRequest, found: LimitTemplate, form: ApplyForm) -> HttpResponse:
    version = selectors.newest_version(found)
    context: dict[str, Any] = {"template": found, "version": version, "form": form, "shown": [], "total": 0}
    data = form.cleaned_data
    if not form.errors.keys() & {"organization", "q", "uses"}:
        chosen = data.get("organization")
        matching = None if chosen else selectors.selected(data.get("q", ""), data.get("uses", ""))
        some = [chosen] if chosen else list(matching[:SHOWN]) if matching is not None else []
        context |= {
            "chosen": chosen,
            "shown": effects(some, version),
            "total": 1 if matching is None else matching.count(),
        }
    status = 400 if form.errors else 200
    return operator_page(request, SECTION, "portal/limit_templates/apply.html", context, status=status)


@login_required
def trial(request: HttpRequest, template_id: int, slug: str) -> HttpResponse:
    """What the newest version's changed limits would have refused of the organization's last week, as a part of the
    preview."""
    access.require_operator(request.user)
    version = selectors.newest_version(rows.limit_template(template_id))
    [effect] = effects([rows.organization(slug)], version)
    context = {"trials": trials(effect), "currency": effect.currency}
    return render(request, "portal/limit_templates/_trials.html", context)


@login_required
@require_POST
def withdraw(request: HttpRequest, slug: str) -> HttpResponse:
    actor = access.require_operator(request.user)
    organization = rows.organization(slug)
    form = WithdrawalForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Say why the template is taken away."))
    else:
        services.withdraw_template(organization=organization, actor=actor, reason=form.cleaned_data["reason"])
        messages.success(request, _("%(name)s has no template any more.") % {"name": organization.name})
    return redirect("portal:operator_organization", slug)
