"""Limit templates: what they say, who uses them, and their way to organizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import OperatorView, by_id, check_form, lists, page, page_of, read_body
from api.rest.serializers.operator_limits import (
    ApplySerializer,
    DefaultSerializer,
    NewTemplateRunSerializer,
    NewTemplateSerializer,
    PreviewSerializer,
    RetirementSerializer,
    SelectionSerializer,
    TemplateRunSerializer,
    TemplateSerializer,
    TemplateUseSerializer,
    TenantTemplateSerializer,
    WithdrawSerializer,
    effect_of,
)
from portal.limit_templates import selectors, services
from portal.limit_templates.content import Content
from portal.limit_templates.effects import effects, trials
from portal.limit_templates.forms import SelectionForm, TemplateForm, limit_rows
from portal.operator import rows

TAG = "operator: limits"
SHOWN = 20


def _shown(template: Any) -> Any:
    return TemplateSerializer(selectors.template_row(template)).data


def _read(request: Request) -> tuple[str, Content, str]:
    """Name, content and reason of the body, by the page's own forms."""
    wanted = read_body(NewTemplateSerializer(data=request.data))
    form = TemplateForm({**wanted, "discount": wanted["discount_percent"]})
    fields = {
        f"limit-{number}-{name}": value for number, row in enumerate(wanted["limits"]) for name, value in row.items()
    }
    count = len(wanted["limits"])
    limits = limit_rows({**fields, "limit-TOTAL_FORMS": count, "limit-INITIAL_FORMS": 0})
    check_form(form, {"discount": "discount_percent"})
    limits.is_valid()
    for number, each in enumerate(limits.forms):
        check_form(each, {name: f"limits.{number}.{name}" for name in each.fields})
    return wanted["name"], form.content(limits), wanted["reason"]


class LimitTemplates(OperatorView):
    @extend_schema(
        operation_id="operator_list_limit_templates",
        tags=[TAG],
        responses=page_of("OperatorLimitTemplates", TemplateSerializer),
    )
    def get(self, request: Request) -> Response:
        """All limit templates, by name."""
        return Response({"data": TemplateSerializer(selectors.templates(), many=True).data, "next": None})

    @extend_schema(
        operation_id="operator_make_limit_template",
        tags=[TAG],
        request=NewTemplateSerializer,
        responses={201: TemplateSerializer},
    )
    def post(self, request: Request) -> Response:
        """Make a template. Nobody has it until it is applied, or the default of new organizations."""
        name, content, reason = _read(request)
        made = services.make_template(name=name, content=content, reason=reason, actor=self.person)
        return Response(_shown(made), status=201)


class LimitTemplateDetail(OperatorView):
    @extend_schema(operation_id="operator_show_limit_template", tags=[TAG], responses=TemplateSerializer)
    def get(self, request: Request, template_id: int) -> Response:
        """One template."""
        return Response(_shown(rows.limit_template(template_id)))

    @extend_schema(
        operation_id="operator_change_limit_template",
        tags=[TAG],
        request=NewTemplateSerializer,
        responses=TemplateSerializer,
    )
    def put(self, request: Request, template_id: int) -> Response:
        """A new version that says all this. Organizations keep the version that they have until they are moved."""
        template = rows.limit_template(template_id)
        name, content, reason = _read(request)
        services.change_template(template=template, name=name, content=content, reason=reason, actor=self.person)
        return Response(_shown(rows.limit_template(template_id)))


class LimitTemplateDefault(OperatorView):
    @extend_schema(
        operation_id="operator_set_default_limit_template",
        tags=[TAG],
        request=DefaultSerializer,
        responses=TemplateSerializer,
    )
    def put(self, request: Request, template_id: int) -> Response:
        """Let new organizations begin with it, or not any more."""
        template = rows.limit_template(template_id)
        wanted = read_body(DefaultSerializer(data=request.data))
        services.set_default(template=template, is_default=wanted["is_default"], actor=self.person)
        return Response(_shown(rows.limit_template(template_id)))


class LimitTemplateRetirement(OperatorView):
    @extend_schema(
        operation_id="operator_retire_limit_template",
        tags=[TAG],
        request=RetirementSerializer,
        responses=TemplateSerializer,
    )
    def put(self, request: Request, template_id: int) -> Response:
        """Give it to nobody any more: who has it keeps it. Or bring a retired one back."""
        template = rows.limit_template(template_id)
        wanted = read_body(RetirementSerializer(data=request.data))
        act = services.retire_template if wanted["is_retired"] else services.restore_template
        act(template=template, reason=wanted["reason"], actor=self.person)
        return Response(_shown(rows.limit_template(template_id)))


class LimitTemplateUses(OperatorView):
    @lists(
        "operator_list_limit_template_uses",
        TemplateUseSerializer,
        tag=TAG,
        summary="Which organizations use the template, with the version, newest first",
    )
    def get(self, request: Request, template_id: int) -> Response:
        found = selectors.uses(rows.limit_template(template_id))

        def load(after: int | None, limit: int) -> tuple[Sequence[Any], int | None]:
            wanted = found if after is None else found.filter(organization_id__lt=after)
            some = list(wanted[: limit + 1])
            return some[:limit], some[limit - 1].organization_id if len(some) > limit else None

        return page(request, load, TemplateUseSerializer)


class LimitTemplatePreview(OperatorView):
    changes_nothing = True

    @extend_schema(
        operation_id="operator_preview_limit_template",
        tags=[TAG],
        request=SelectionSerializer,
        responses={200: PreviewSerializer},
    )
    def post(self, request: Request, template_id: int) -> Response:
        """What the newest version would change, and of one organization what it would have refused last week."""
        version = selectors.newest_version(rows.limit_template(template_id))
        form = SelectionForm(read_body(SelectionSerializer(data=request.data)))
        check_form(form)
        chosen, data = form.cleaned_data["organization"], form.cleaned_data
        if chosen is not None:
            [effect] = effects([chosen], version)
            replays = {trial.change.key: trial.replay for trial in trials(effect)}
            return Response(PreviewSerializer({"total": 1, "data": [effect_of(effect, replays)]}).data)
        found = selectors.selected(data["q"], data["uses"])
        some = [effect_of(effect, {}) for effect in effects(list(found[:SHOWN]), version)]
        return Response(PreviewSerializer({"total": found.count(), "data": some}).data)


class LimitTemplateRuns(OperatorView):
    @lists(
        "operator_list_limit_template_runs",
        TemplateRunSerializer,
        tag=TAG,
        summary="Runs that applied the template to many, newest first",
    )
    def get(self, request: Request, template_id: int) -> Response:
        return page(request, by_id(selectors.runs(rows.limit_template(template_id))), TemplateRunSerializer)

    @extend_schema(
        operation_id="operator_start_limit_template_run",
        tags=[TAG],
        request=NewTemplateRunSerializer,
        responses={202: TemplateRunSerializer},
    )
    def post(self, request: Request, template_id: int) -> Response:
        """Apply the newest version to all that are selected. It can be repeated; who has it is left as is."""
        version = selectors.newest_version(rows.limit_template(template_id))
        wanted = read_body(NewTemplateRunSerializer(data=request.data))
        form = SelectionForm({"q": wanted["q"], "uses": wanted["uses"]})
        check_form(form)
        run = services.start_run(
            version=version,
            search=form.cleaned_data["q"],
            uses=form.cleaned_data["uses"],
            reason=wanted["reason"],
            actor=self.person,
        )
        return Response(TemplateRunSerializer(run).data, status=202)


class LimitTemplateRunDetail(OperatorView):
    @extend_schema(operation_id="operator_show_limit_template_run", tags=[TAG], responses=TemplateRunSerializer)
    def get(self, request: Request, template_run_id: int) -> Response:
        """How far it is, and what it did."""
        return Response(TemplateRunSerializer(rows.template_run(template_run_id)).data)


class TenantLimitTemplate(OperatorView):
    @extend_schema(operation_id="operator_show_organization_template", tags=[TAG], responses=TenantTemplateSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """The template that an organization has."""
        return Response(TenantTemplateSerializer(selectors.use_of(rows.organization(slug)) or {}).data)

    @extend_schema(
        operation_id="operator_apply_limit_template",
        tags=[TAG],
        request=ApplySerializer,
        responses=TenantTemplateSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Give it the newest version of a template, from the next call on."""
        organization = rows.organization(slug)
        wanted = read_body(ApplySerializer(data=request.data))
        version = selectors.newest_version(rows.limit_template(wanted["template_id"]))
        services.apply_template(organization=organization, version=version, reason=wanted["reason"], actor=self.person)
        return Response(TenantTemplateSerializer(selectors.use_of(organization) or {}).data)

    @extend_schema(
        operation_id="operator_withdraw_limit_template", tags=[TAG], request=WithdrawSerializer, responses={204: None}
    )
    def delete(self, request: Request, slug: str) -> Response:
        """Take the template away: its limits and its discount end, the credit limit stays. Say why."""
        organization = rows.organization(slug)
        wanted = read_body(WithdrawSerializer(data=request.data))
        services.withdraw_template(organization=organization, reason=wanted["reason"], actor=self.person)
        return Response(status=204)
