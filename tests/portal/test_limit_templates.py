"""Limit templates: versions, their way to organizations, what admins may do beside them, pages and paths."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.accounts.models import BillingAccount
from billing.pricing.selectors import current_price
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog.models import Model
from portal.errors import NameTaken, NotPossible
from portal.limit_templates import selectors, services
from portal.limit_templates.content import Content, LimitKey, LimitValue
from portal.limit_templates.effects import effects, trials
from portal.limit_templates.models import LimitTemplate, TemplateRun, TemplateUse, TemplateVersion
from portal.organizations.models import Organization
from portal.organizations.services import create_organization
from portal.quotas import snapshot
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import QuotaAboveCeiling, QuotaImposed, change_quota, remove_quota
from portal.users.models import User
from tests.factories.billing import make_account
from tests.factories.portal import Cast
from tests.factories.usage import use

pytestmark = pytest.mark.django_db
Browser = Callable[[User | None], Client]

REQUESTS = LimitKey("requests", "minute")
SPEND = LimitKey("spend", "month")
DOLLAR = 10**9


def hard(limit: int) -> LimitValue:
    return LimitValue(limit, "hard")


def content(requests: int = 60, **more: Any) -> Content:
    return Content({REQUESTS: hard(requests), SPEND: hard(25 * DOLLAR)}, **more)


@pytest.fixture
def trial(cast: Cast) -> LimitTemplate:
    return services.make_template(name="Trial", content=content(), actor=cast.oda, reason="first")


def newest(template: LimitTemplate) -> TemplateVersion:
    return selectors.newest_version(template)


def give(template: LimitTemplate, cast: Cast, organization: Organization | None = None) -> bool:
    return services.apply_template(
        organization=organization or cast.organization, version=newest(template), actor=cast.oda, reason="a test"
    )


def imposed(organization: Organization) -> dict[LimitKey, int]:
    rows = Quota.objects.filter(organization=organization, is_imposed=True)
    return {LimitKey(row.kind, row.window, row.model): row.limit for row in rows}


class TestVersions:
    def test_a_change_is_a_new_version_and_the_old_one_stays(self, cast: Cast, trial: LimitTemplate) -> None:
        changed = services.change_template(template=trial, name="Trial", content=content(30), actor=cast.oda)
        assert changed.number == 2
        assert [
            (version.number, version.limits.get(kind="requests").limit) for version, _ in selectors.versions(trial)
        ] == [(2, 30), (1, 60)]
        same = services.change_template(template=trial, name="Trial", content=content(30), actor=cast.oda)
        assert same == changed
        renamed = services.change_template(template=trial, name="Starter", content=content(30), actor=cast.oda)
        assert (renamed, LimitTemplate.objects.get().name) == (changed, "Starter")
        actions = AuditEvent.objects.filter(action__startswith="limit_template.").order_by("id")
        assert [event.action for event in actions] == ["limit_template.created", *["limit_template.changed"] * 2]

    def test_names_are_taken_once(self, cast: Cast, trial: LimitTemplate) -> None:
        with pytest.raises(NameTaken):
            services.make_template(name="Trial", content=content(), actor=cast.oda)
        other = services.make_template(name="Standard", content=content(), actor=cast.oda)
        with pytest.raises(NameTaken):
            services.change_template(template=other, name="Trial", content=content(), actor=cast.oda)


class TestApplying:
    def test_its_limits_are_the_organizations_and_reach_the_gateways(
        self, cast: Cast, trial: LimitTemplate, django_capture_on_commit_callbacks: Any
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            assert give(trial, cast)
        assert imposed(cast.organization) == {REQUESTS: 60, SPEND: 25 * DOLLAR}
        published = snapshot.read(cast.organization.id).quotas
        assert {(quota.scope, quota.kind, quota.limit) for quota in published} == {
            ("organization", "requests", 60),
            ("organization", "spend", 25 * DOLLAR),
        }
        assert not give(trial, cast), "a repeat changes nothing"
        [event] = AuditEvent.objects.filter(action="limit_template.applied")
        assert (event.organization, event.after, event.reason) == (
            cast.organization,
            {"template": "Trial v1"},
            "a test",
        )

    def test_a_limit_keeps_its_id_from_version_to_version(self, cast: Cast, trial: LimitTemplate) -> None:
        """The gateways count by it: what was used in the window stays counted."""
        give(trial, cast)
        before = Quota.objects.get(is_imposed=True, kind="requests").id
        without_spend = Content({REQUESTS: hard(30), LimitKey("tokens", "day", "m"): LimitValue(9, "soft")})
        services.change_template(template=trial, name="Trial", content=without_spend, actor=cast.oda)
        assert imposed(cast.organization)[REQUESTS] == 60, "nobody is moved by a change"
        give(trial, cast)
        assert imposed(cast.organization) == {REQUESTS: 30, LimitKey("tokens", "day", "m"): 9}
        assert Quota.objects.get(is_imposed=True, kind="requests").id == before

    def test_terms_of_the_template_are_set_and_its_discount_ends_with_it(self, cast: Cast, model: Model) -> None:
        listed = current_price(model.name, timezone.now(), cast.organization.id)
        assert listed
        terms = content(credit_limit_nano=100 * DOLLAR, discount_basis_points=1000)
        template = services.make_template(name="Enterprise", content=terms, actor=cast.oda)
        give(template, cast)
        account = BillingAccount.objects.get(organization=cast.organization)
        own = current_price(model.name, timezone.now(), cast.organization.id)
        assert own
        assert (account.credit_limit_nano, own.input_nano * 10) == (100 * DOLLAR, listed.input_nano * 9)
        assert not give(template, cast)
        services.withdraw_template(organization=cast.organization, actor=cast.oda, reason="left")
        services.withdraw_template(organization=cast.organization, actor=cast.oda, reason="left")
        assert imposed(cast.organization) == {}
        assert not TemplateUse.objects.exists()
        again = current_price(model.name, timezone.now(), cast.organization.id)
        account.refresh_from_db()
        assert again
        assert (again.input_nano, account.credit_limit_nano) == (listed.input_nano, 100 * DOLLAR)
        assert AuditEvent.objects.filter(action="limit_template.withdrawn").count() == 1

    def test_the_next_template_ends_the_discount_of_the_one_before(self, cast: Cast, model: Model) -> None:
        for name, points in (("Ten", 1000), ("Twenty", 2000)):
            template = services.make_template(
                name=name, content=Content({}, discount_basis_points=points), actor=cast.oda
            )
            give(template, cast)
        own = current_price(model.name, timezone.now(), cast.organization.id)
        assert own
        assert own.discount_basis_points == 2000
        assert AuditEvent.objects.filter(action="price.discount_ended").count() == 1

    def test_new_organizations_begin_with_the_default(self, cast: Cast, trial: LimitTemplate) -> None:
        assert imposed(create_organization(owner=cast.ada, name="Before")) == {}
        services.set_default(template=trial, is_default=True, actor=cast.oda)
        new = create_organization(owner=cast.ada, name="After")
        assert imposed(new) == {REQUESTS: 60, SPEND: 25 * DOLLAR}
        event = AuditEvent.objects.get(action="limit_template.applied", organization=new)
        assert (event.actor, event.actor_label) == (None, "system")
        other = services.make_template(name="Standard", content=content(600), actor=cast.oda)
        services.set_default(template=other, is_default=True, actor=cast.oda)
        assert list(LimitTemplate.objects.filter(is_default=True)) == [other]
        services.set_default(template=other, is_default=False, actor=cast.oda)
        assert imposed(create_organization(owner=cast.ada, name="Later")) == {}


class TestBesideOwnLimits:
    def own(self, cast: Cast, limit: int, **scope: Any) -> Quota | None:
        return change_quota(
            organization=cast.organization,
            kind=QuotaKind.REQUESTS,
            window=Window.MINUTE,
            limit=limit,
            actor=cast.ada,
            **scope,
        )

    def test_a_lower_one_stands_beside_and_a_higher_one_is_refused(self, cast: Cast, trial: LimitTemplate) -> None:
        self.own(cast, 1000)
        give(trial, cast)
        assert sorted(Quota.objects.filter(kind="requests").values_list("limit", flat=True)) == [60, 1000]
        self.own(cast, 10)
        self.own(cast, 60, project=cast.project)
        for scope in ({}, {"project": cast.project}, {"model": "m"}):
            with pytest.raises(QuotaAboveCeiling, match="at most 60"):
                self.own(cast, 61, **scope)
        # Other windows and kinds are the organization's own business.
        change_quota(
            organization=cast.organization, kind=QuotaKind.REQUESTS, window=Window.DAY, limit=10**6, actor=cast.ada
        )
        assert imposed(cast.organization)[REQUESTS] == 60

    def test_its_admins_cannot_remove_it(self, cast: Cast, trial: LimitTemplate, signed_in: Browser) -> None:
        give(trial, cast)
        quota = Quota.objects.get(is_imposed=True, kind="requests")
        with pytest.raises(QuotaImposed):
            remove_quota(quota=quota, actor=cast.ada)
        browser, slug = signed_in(cast.dee), cast.organization.slug
        page = browser.post(reverse("portal:limit_remove", args=[slug, quota.id]), follow=True).content.decode()
        assert "ask them to change it" in page
        assert "Set by the operator: Trial" in page
        form = {"what": "requests:minute", "amount": "61", "mode": "hard"}
        refused = browser.post(reverse("portal:limits", args=[slug]), form)
        assert refused.status_code == 400
        assert "at most 60" in str(refused.context["form"].errors["amount"])
        api = browser.post(
            reverse("api:limits", args=[slug]),
            {"what": "requests:minute", "amount": "61"},
            content_type="application/json",
        )
        assert (api.status_code, api.json()["error"]["code"]) == (400, "quota_above_ceiling")
        gone = browser.delete(reverse("api:limit", args=[slug, quota.id]))
        assert (gone.status_code, gone.json()["error"]["code"]) == (409, "quota_imposed")
        listed = browser.get(reverse("api:limits", args=[slug])).json()["data"]
        assert [row["is_imposed"] for row in listed] == [True, True]


class TestPreview:
    def test_it_says_what_would_change_and_what_would_have_been_refused(
        self, cast: Cast, model: Model, trial: LimitTemplate
    ) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        now = timezone.now()
        for number in range(5):
            use(key, model.name, started_at=now - timedelta(seconds=5 - number), price_at=now)
        services.change_template(
            template=trial, name="Trial", content=Content({REQUESTS: hard(2)}, 50 * DOLLAR), actor=cast.oda
        )
        [effect] = effects([cast.organization], newest(trial))
        assert [(change.key, change.before, change.after) for change in effect.limits] == [(REQUESTS, None, hard(2))]
        assert (effect.credit_limit, effect.discount) == ((0, 50 * DOLLAR), None)
        [tried] = trials(effect)
        assert (tried.replay.calls, tried.replay.refused) == (5, 3)
        give(trial, cast)
        [effect] = effects([cast.organization], newest(trial))
        assert not effect.changes

    def test_its_queries_do_not_grow_with_the_organizations(
        self, cast: Cast, trial: LimitTemplate, django_assert_max_num_queries: Any
    ) -> None:
        give(trial, cast)
        found = list(Organization.objects.all())
        assert len(found) > 1
        with django_assert_max_num_queries(6):
            assert len(effects(found, newest(trial))) == len(found)


class TestRuns:
    def test_all_that_are_selected_get_it_and_one_that_fails_stops_nobody(
        self, cast: Cast, trial: LimitTemplate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        some = [make_account(name="Chosen").organization for _ in range(3)]
        other = make_account(name="Other").organization
        run = services.start_run(version=newest(trial), search="Chosen", uses="", actor=cast.oda, reason="all")
        assert run.total == 3
        give(trial, cast, some[0])
        whole = services.apply_template

        def broken(*, organization: Organization, **more: Any) -> bool:
            if organization == some[1]:
                raise NotPossible("not this one")
            return whole(organization=organization, **more)

        monkeypatch.setattr(services, "apply_template", broken)
        assert not services.execute_run(run.id)
        run.refresh_from_db()
        assert (run.state, run.changed, run.unchanged, run.failed, run.percent) == ("finished", 1, 1, 1, 100)
        assert run.failures == [[some[1].slug, "not this one"]]
        assert (imposed(some[2])[REQUESTS], imposed(other)) == (60, {})
        assert not services.execute_run(run.id), "it is over"

    def test_a_run_goes_on_where_it_was(
        self, cast: Cast, trial: LimitTemplate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            make_account(name="Chosen")
        run = services.start_run(version=newest(trial), search="Chosen", uses="", actor=cast.oda, reason="all")
        monkeypatch.setattr(services, "SLICE_S", 0.0)
        slices = 1
        while services.execute_run(run.id):
            slices += 1
        run.refresh_from_db()
        assert (slices, run.changed, run.state) == (4, 3, "finished")

    def test_those_who_use_a_template_or_none(self, cast: Cast, trial: LimitTemplate) -> None:
        give(trial, cast)
        assert list(selectors.selected("", str(trial.id))) == [cast.organization]
        assert cast.organization not in selectors.selected("", selectors.WITHOUT)
        assert selectors.selected("", selectors.WITHOUT).count() == Organization.objects.count() - 1

    def test_only_the_newest_version_goes_out(self, cast: Cast, trial: LimitTemplate) -> None:
        old = newest(trial)
        services.change_template(template=trial, name="Trial", content=content(30), actor=cast.oda)
        with pytest.raises(NotPossible, match="changed meanwhile"):
            services.start_run(version=old, search="", uses="", actor=cast.oda, reason="all")


def fields(*rows: tuple[str, str], **more: str) -> dict[str, str]:
    data = {"limit-TOTAL_FORMS": str(len(rows)), "limit-INITIAL_FORMS": "0", "name": "Trial", **more}
    for number, (what, amount) in enumerate(rows):
        data |= {f"limit-{number}-what": what, f"limit-{number}-amount": amount, f"limit-{number}-mode": "hard"}
    return data


class TestPages:
    def test_an_operator_makes_changes_previews_and_moves(
        self, cast: Cast, signed_in: Browser, django_capture_on_commit_callbacks: Any
    ) -> None:
        browser = signed_in(cast.oda)
        new = reverse("portal:operator_limit_template_new")
        assert browser.get(new).status_code == 200
        twice = browser.post(new, fields(("requests:minute", "60"), ("requests:minute", "70")))
        assert twice.status_code == 400
        assert "another row" in twice.content.decode()
        assert "Enter a whole number" in browser.post(new, fields(("requests:minute", "sixty"))).content.decode()
        made = browser.post(new, fields(("requests:minute", "60"), ("spend:month", "25.50"), credit_limit="0"))
        assert made.status_code == 302
        template = LimitTemplate.objects.get()
        assert newest(template).limits.get(kind="spend").limit == 25_500_000_000
        assert newest(template).credit_limit_nano == 0
        assert browser.post(new, fields()).status_code == 400, "the name is taken"

        apply = reverse("portal:operator_limit_template_apply", args=[template.id])
        one = {"organization": cast.organization.slug}
        preview = browser.get(apply, one).content.decode()
        assert "no limit → <b>60</b>" in preview
        assert not TemplateUse.objects.exists()
        assert browser.get(apply, {"organization": "nobody"}).status_code == 400
        part = browser.get(reverse("portal:operator_limit_template_trial", args=[template.id, cast.organization.slug]))
        assert "no call in the last seven days" in part.content.decode()
        version = newest(template)
        assert browser.post(apply, {**one, "version": version.id}).status_code == 400, "without a reason"
        page = browser.post(apply, {**one, "version": version.id, "reason": "agreed"}, follow=True)
        assert "has Trial v1" in page.content.decode()
        assert imposed(cast.organization)[REQUESTS] == 60

        change = reverse("portal:operator_limit_template_change", args=[template.id])
        assert "organizations use this template" in browser.get(change).content.decode()
        moved = browser.post(change, fields(("requests:minute", "30"), move="move"))
        assert moved["Location"] == f"{apply}?uses={template.id}"
        assert "60 → <b>30</b>" in browser.get(moved["Location"]).content.decode()
        shown = browser.get(reverse("portal:operator_limit_template", args=[template.id])).content.decode()
        assert "have an older version" in shown
        old = {"uses": str(template.id), "version": version.id, "reason": "late"}
        assert "changed meanwhile" in browser.post(apply, old, follow=True).content.decode()
        with django_capture_on_commit_callbacks(execute=True):
            browser.post(apply, {**old, "version": newest(template).id})
        services.execute_run(TemplateRun.objects.get().id)
        assert imposed(cast.organization) == {REQUESTS: 30}
        shown = browser.get(reverse("portal:operator_limit_template", args=[template.id])).content.decode()
        assert "have an older version" not in shown
        assert "Applied to many" in shown

        default = reverse("portal:operator_limit_template_default", args=[template.id])
        browser.post(default, {"is_default": "1"})
        assert "Default" in browser.get(reverse("portal:operator_limit_templates")).content.decode()
        withdraw = reverse("portal:operator_limit_template_withdraw", args=[cast.organization.slug])
        assert "Say why" in browser.post(withdraw, follow=True).content.decode()
        browser.post(withdraw, {"reason": "left"})
        assert imposed(cast.organization) == {}
        audit = browser.get(reverse("portal:operator_audit")).content.decode()
        assert "took the limit template away from" in audit


class TestRetiring:
    def test_it_is_given_to_nobody_any_more_and_who_has_it_keeps_it(self, cast: Cast, trial: LimitTemplate) -> None:
        give(trial, cast)
        services.set_default(template=trial, is_default=True, actor=cast.oda)
        services.retire_template(template=trial, actor=cast.oda, reason="replaced")
        services.retire_template(template=trial, actor=cast.oda, reason="again")
        trial.refresh_from_db()
        assert (trial.is_retired, trial.is_default) == (True, False)
        assert imposed(cast.organization) == {REQUESTS: 60, SPEND: 25 * DOLLAR}
        assert selectors.offered() == []
        new = create_organization(owner=cast.cyd, name="New")
        assert imposed(new) == {}
        refused = "Trial is retired. Bring it back first."
        for act in (
            lambda: give(trial, cast, new),
            lambda: services.start_run(version=newest(trial), search="", uses="", actor=cast.oda, reason="all"),
            lambda: services.set_default(template=trial, is_default=True, actor=cast.oda),
            lambda: services.change_template(template=trial, name="Trial", content=content(1), actor=cast.oda),
        ):
            with pytest.raises(NotPossible, match=refused):
                act()
        services.withdraw_template(organization=cast.organization, actor=cast.oda, reason="left")
        services.restore_template(template=trial, actor=cast.oda, reason="wanted")
        assert give(trial, cast)
        assert newest(trial).number == 1
        events = AuditEvent.objects.filter(action__in=["limit_template.retired", "limit_template.restored"])
        assert list(events.order_by("id").values_list("reason", flat=True)) == ["replaced", "wanted"]

    def test_not_while_a_run_gives_it(self, cast: Cast, trial: LimitTemplate) -> None:
        run = services.start_run(version=newest(trial), search="", uses="", actor=cast.oda, reason="all")
        with pytest.raises(NotPossible, match="when that is over"):
            services.retire_template(template=trial, actor=cast.oda, reason="replaced")
        services.execute_run(run.id)
        services.retire_template(template=trial, actor=cast.oda, reason="replaced")

    def test_page_asks_why_and_offers_the_way_back(self, cast: Cast, trial: LimitTemplate, signed_in: Browser) -> None:
        give(trial, cast)
        browser, page = signed_in(cast.oda), reverse("portal:operator_limit_template", args=[trial.id])
        retire = reverse("portal:operator_limit_template_retire", args=[trial.id])
        assert "Say why." in browser.post(retire, {"is_retired": "1"}, follow=True).content.decode()
        shown = browser.post(retire, {"is_retired": "1", "reason": "replaced"}, follow=True).content.decode()
        assert "it is given to nobody any more. Organizations that have it (1) keep its limits" in shown
        assert 'data-dialog="apply"' not in shown
        apply = reverse("portal:operator_limit_template_apply", args=[trial.id])
        assert browser.get(apply).headers["Location"] == page
        tenant = reverse("portal:operator_organization", args=[cast.organization.slug])
        assert f'href="{apply}' not in browser.get(tenant).content.decode()
        shown = browser.post(retire, {"is_retired": "0", "reason": "wanted"}, follow=True).content.decode()
        assert 'data-dialog="apply"' in shown


class TestPaths:
    def test_a_program_does_the_same(self, cast: Cast, signed_in: Browser) -> None:
        browser = signed_in(cast.oda)

        def call(method: str, path: str, *args: Any, **body: Any) -> Any:
            address = reverse(f"api:operator_{path}", args=args)
            return getattr(browser, method)(address, body, content_type="application/json")

        limits = [
            {"what": "requests:minute", "amount": "60"},
            {"what": "spend:month", "amount": "25.5", "mode": "soft"},
        ]
        made = call("post", "limit_templates", name="Trial", limits=limits, discount_percent="12.5")
        assert made.status_code == 201, made.content
        number = made.json()["id"]
        assert made.json()["limits"] == [
            {"what": "requests:minute", "amount": "60", "model": "", "mode": "hard"},
            {"what": "spend:month", "amount": "25.500000000", "model": "", "mode": "soft"},
        ]
        assert (made.json()["discount_percent"], made.json()["credit_limit"]) == ("12.5", None)
        bad = call("post", "limit_templates", name="X", limits=[{"what": "requests:day", "amount": "many"}])
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "limits.0.amount")
        taken = call("post", "limit_templates", name="Trial", limits=[])
        assert (taken.status_code, taken.json()["error"]["code"]) == (409, "name_taken")

        slug = cast.organization.slug
        assert browser.get(reverse("api:operator_organization_limit_template", args=[slug])).json() == {
            "template_id": None,
            "name": None,
            "version": None,
            "applied_at": None,
        }
        preview = call("post", "limit_template_preview", number, organization=slug).json()
        assert preview["total"] == 1
        assert preview["data"][0]["limits"][0]["would_have_refused"] == 0
        assert preview["data"][0]["discount_percent_after"] == "12.5"
        many = call("post", "limit_template_preview", number, uses="none").json()
        assert many["total"] == Organization.objects.count()
        given = call("put", "organization_limit_template", slug, template_id=number, reason="agreed")
        assert given.json()["version"] == 1
        changed = call("put", "limit_template", number, name="Trial", limits=limits[:1])
        assert (changed.json()["version"], changed.json()["on_older_versions"]) == (2, 1)
        uses = browser.get(reverse("api:operator_limit_template_uses", args=[number])).json()["data"]
        assert [(row["organization"], row["version"]) for row in uses] == [(slug, 1)]
        run = call("post", "limit_template_runs", number, uses=str(number), reason="all").json()
        services.execute_run(run["id"])
        done = browser.get(reverse("api:operator_limit_template_run", args=[run["id"]])).json()
        assert (done["state"], done["changed"], done["percent"]) == ("finished", 1, 100)
        default = call("put", "limit_template_default", number, is_default=True)
        assert default.json()["is_default"] is True
        retired = call("put", "limit_template_retirement", number, is_retired=True, reason="replaced")
        assert (retired.json()["is_retired"], retired.json()["is_default"]) == (True, False)
        refused = call("put", "organization_limit_template", slug, template_id=number, reason="agreed")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_possible")
        call("put", "limit_template_retirement", number, is_retired=False, reason="wanted")
        assert call("delete", "organization_limit_template", slug, reason="left").status_code == 204
        assert not TemplateUse.objects.exists()
