"""Reads of templates, and of who uses which version."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.db.models import Count, F, QuerySet

from portal.limit_templates.models import LimitTemplate, TemplateRun, TemplateUse, TemplateVersion
from portal.operator.models import RunState
from portal.organizations.models import Organization
from portal.organizations.selectors import search_organizations

# In place of a template's id: organizations without one.
WITHOUT = "none"


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """A template with its newest version, and how many organizations use that one and an older one."""

    template: LimitTemplate
    version: TemplateVersion
    current: int
    older: int

    @property
    def used(self) -> int:
        return self.current + self.older


def templates() -> list[TemplateRow]:
    """By name, the retired ones last. Four queries."""
    ordered = LimitTemplate.objects.order_by(F("retired_at").desc(nulls_first=True), "name")
    found = ordered.prefetch_related("versions__limits", "versions__created_by")
    counts = dict(TemplateUse.objects.values_list("version").annotate(count=Count("organization")))
    return [_row(template, counts) for template in found]


def offered() -> list[TemplateRow]:
    """Those that organizations can still be given."""
    return [row for row in templates() if not row.template.is_retired]


def is_running(template: LimitTemplate) -> bool:
    """Whether a run still gives it to organizations."""
    over = (RunState.FINISHED, RunState.FAILED)
    return TemplateRun.objects.filter(version__template=template).exclude(state__in=over).exists()


def template_row(template: LimitTemplate) -> TemplateRow:
    counts = dict(
        TemplateUse.objects.filter(version__template=template)
        .values_list("version")
        .annotate(count=Count("organization"))
    )
    return _row(template, counts)


def _row(template: LimitTemplate, counts: dict[int, int]) -> TemplateRow:
    versions = sorted(template.versions.all(), key=lambda version: -version.number)
    older = sum(counts.get(version.id, 0) for version in versions[1:])
    return TemplateRow(template, versions[0], counts.get(versions[0].id, 0), older)


def versions(template: LimitTemplate) -> list[tuple[TemplateVersion, int]]:
    """Newest first, each with how many organizations use it."""
    found = template.versions.select_related("created_by").prefetch_related("limits")
    return [(version, version.use_count) for version in found.annotate(use_count=Count("uses")).order_by("-number")]


def newest_version(template: LimitTemplate) -> TemplateVersion:
    return template.versions.select_related("template").latest("number")


def default_template() -> LimitTemplate | None:
    return LimitTemplate.objects.filter(is_default=True).first()


def use_of(organization: Organization) -> TemplateUse | None:
    return TemplateUse.objects.filter(organization=organization).select_related("version__template").first()


def find_template(template_id: int) -> LimitTemplate | None:
    return LimitTemplate.objects.filter(id=template_id).first()


def find_run(run_id: int) -> TemplateRun | None:
    found = TemplateRun.objects.filter(id=run_id)
    return found.select_related("version__template", "started_by").first()


def uses(template: LimitTemplate) -> QuerySet[TemplateUse]:
    """By organization, newest first, to be cut into pages."""
    found = TemplateUse.objects.filter(version__template=template)
    return found.select_related("organization", "version").order_by("-organization_id")


def selected(search: str, uses: str) -> QuerySet[Organization]:
    """Organizations that are not closed, in the order of their ids: `search` as in the list of organizations; `uses` is
    empty for all, WITHOUT, or the id of the template that they use."""
    found = search_organizations(search).filter(closed_at=None).order_by("id")
    if uses == WITHOUT:
        return found.filter(template_use=None)
    return found.filter(template_use__version__template_id=int(uses)) if uses else found


def runs(template: LimitTemplate) -> QuerySet[TemplateRun]:
    """Newest first."""
    found = TemplateRun.objects.filter(version__template=template)
    return found.select_related("version", "started_by").order_by("-id")


def only_currency() -> str:
    """The currency of all organizations; empty where they have several, so that amounts are figures alone."""
    return settings.BILLING_CURRENCIES[0] if len(settings.BILLING_CURRENCIES) == 1 else ""
