"""Limits: the service, their Valkey form, the page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing.usage.selectors import FinishedCall, RecordCounts, microseconds_of
from portal.api_keys.selectors import find_active
from portal.api_keys.services import ANYTHING, change, issue, rotate
from portal.audit.models import AuditEvent
from portal.catalog.models import Model
from portal.organizations.models import Member
from portal.organizations.services import rename_project, set_suspended
from portal.quotas import snapshot
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.replay import replay
from portal.quotas.selectors import quotas_of
from portal.quotas.services import QuotaOutOfScope, change_quota
from portal.quotas.use import uses_of, window_bounds
from portal.tasks import publish_snapshots
from tests.factories.portal import Cast
from tests.factories.usage import use


def limit(cast: Cast, amount: int | None, **scope: object) -> Quota | None:
    return change_quota(
        organization=cast.organization,
        kind=QuotaKind.TOKENS,
        window=Window.DAY,
        limit=amount,
        actor=cast.ada,
        reason="a test",
        **scope,  # type: ignore[arg-type]
    )


class TestChangeQuota:
    def test_sets_changes_and_removes_with_an_audit_event_each(self, cast: Cast) -> None:
        limit(cast, 100)
        limit(cast, 200)
        limit(cast, 200)
        assert Quota.objects.get().limit == 200
        limit(cast, None)
        assert limit(cast, None) is None
        assert not Quota.objects.exists()
        events = AuditEvent.objects.filter(action__startswith="quota.").order_by("id")
        which = {"kind": "tokens", "window": "day", "scope": cast.organization.name, "model": ""}
        assert [(event.before, event.after) for event in events] == [
            ({"limit": None, "mode": None} | which, {"limit": 100, "mode": "hard"} | which),
            ({"limit": 100, "mode": "hard"} | which, {"limit": 200, "mode": "hard"} | which),
            ({"limit": 200, "mode": "hard"} | which, {"limit": None, "mode": None} | which),
        ]

    def test_each_scope_has_its_own(self, cast: Cast) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        for scope in ({}, {"project": cast.project}, {"api_key": key}):
            limit(cast, 100, **scope)
        assert Quota.objects.count() == 3

    def test_project_of_another_organization_is_refused(self, cast: Cast) -> None:
        theirs = Member.objects.get(user=cast.cyd).organization.projects.get()
        with pytest.raises(QuotaOutOfScope):
            limit(cast, 100, project=theirs)

    @pytest.mark.parametrize(
        ("kind", "window"), [(QuotaKind.CONCURRENCY, Window.DAY), (QuotaKind.REQUESTS, Window.NOW)]
    )
    def test_kind_and_window_that_do_not_fit_are_refused(self, cast: Cast, kind: QuotaKind, window: Window) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            change_quota(organization=cast.organization, kind=kind, window=window, limit=1, actor=cast.ada)


class TestSnapshot:
    def test_is_published_after_the_commit(
        self, cast: Cast, django_capture_on_commit_callbacks: Callable[..., object]
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            limit(cast, 100)
        (quota,) = snapshot.read(cast.organization.id).quotas
        assert (quota.scope, quota.scope_id, quota.kind, quota.window, quota.limit) == (
            "organization",
            cast.organization.id,
            "tokens",
            "day",
            100,
        )

    def test_lost_hash_is_published_again_by_a_read_and_by_the_task(self, cast: Cast) -> None:
        key = snapshot.key(cast.organization.id)
        snapshot.client().delete(key)
        assert snapshot.read(cast.organization.id).time_zone == "UTC"
        assert snapshot.client().exists(key)
        snapshot.client().delete(key)
        publish_snapshots()
        assert snapshot.client().exists(key)

    @pytest.mark.parametrize("publisher", ["publish", "publish_all"])
    def test_a_change_that_comes_in_between_is_not_written_over(
        self, publisher: str, cast: Cast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loader = "load" if publisher == "publish" else "_load_batch"
        load = getattr(snapshot, loader)

        def overtaken(which: object) -> object:
            found = load(which)
            monkeypatch.setattr(snapshot, loader, load)
            limit(cast, 200)
            snapshot.publish(cast.organization.id)
            return found

        limit(cast, 100)
        monkeypatch.setattr(snapshot, loader, overtaken)
        snapshot.publish(cast.organization.id) if publisher == "publish" else snapshot.publish_all()
        assert [each.limit for each in snapshot.read(cast.organization.id).quotas] == [200]

    def test_says_who_is_suspended(self, cast: Cast, django_capture_on_commit_callbacks: Callable[..., object]) -> None:
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            set_suspended(organization=cast.organization, is_suspended=True, actor=cast.oda, reason="unpaid")
        assert snapshot.read(cast.organization.id).is_suspended

    def test_says_whose_each_limit_is(self, cast: Cast) -> None:
        limit(cast, 1)
        limit(cast, 2, project=cast.project)
        limit(cast, 5, member=Member.objects.get(user=cast.ada, organization=cast.organization))
        limit(cast, 7, model="m")
        assert [
            (each.limit, each.scope, each.scope_id, each.model) for each in snapshot.load(cast.organization.id).quotas
        ] == [
            (1, "organization", cast.organization.id, ""),
            (2, "project", cast.project.id, ""),
            (5, "member", cast.ada.id, ""),
            (7, "organization", cast.organization.id, "m"),
        ]

    def test_says_the_new_name_of_whose_it_is(
        self, cast: Cast, django_capture_on_commit_callbacks: Callable[..., object]
    ) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        limit(cast, 2, project=cast.project)
        limit(cast, 4, api_key=key)
        snapshot.publish(cast.organization.id)
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            rename_project(project=cast.project, name="Looms", actor=cast.ada)
            change(api_key=key, name="desk", expires_at=None, rules=ANYTHING, actor=cast.ada)
        assert [each.scope_name for each in snapshot.read(cast.organization.id).quotas] == ["Looms"]
        found = find_active(key.digest)
        assert found is not None
        assert [each.scope_name for each in found.limits] == ["desk"]

    def test_a_keys_own_are_read_with_the_key(self, cast: Cast) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        for amount, scope in ((1, {}), (4, {"api_key": key}), (2**62, {"api_key": key, "model": "m"})):
            limit(cast, amount, **scope)
        found = find_active(key.digest)
        assert found is not None
        assert found.limits == tuple(snapshot.as_limit(row) for row in key.quotas.order_by("id"))
        assert [each.limit for each in found.limits] == [4, 2**62]
        assert [each.limit for each in snapshot.load(cast.organization.id).quotas] == [1]

    def test_a_change_of_a_keys_own_announces_its_secrets_and_publishes_nothing(
        self,
        cast: Cast,
        announcements: list[tuple[str, str]],
        django_capture_on_commit_callbacks: Callable[..., object],
    ) -> None:
        first = issue(project=cast.project, name="laptop", actor=cast.ada)
        old = first.api_key.digest
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            limit(cast, 4, api_key=first.api_key)
            # Commits before the announcement, and after the change.
            second = rotate(api_key=first.api_key, overlap=timedelta(hours=1), actor=cast.ada)
        assert set(announcements) == {("keys:revoked", old), ("keys:revoked", second.api_key.digest)}
        announcements.clear()
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            limit(cast, 4, api_key=second.api_key)
        assert not announcements

    def test_another_version_is_not_read(self, cast: Cast) -> None:
        fields = snapshot.encode(snapshot.load(cast.organization.id))
        assert snapshot.decode(cast.organization.id, fields)
        assert snapshot.decode(cast.organization.id, fields | {"version": "0"}) is None
        assert snapshot.decode(cast.organization.id, {}) is None


class TestUse:
    def test_counts_records_of_the_window_and_scope(self, cast: Cast, model: Model) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        other = issue(project=cast.project, name="other", actor=cast.ada).api_key
        use(key, model.name, started_at=timezone.now(), prompt_tokens=1000, completion_tokens=100)
        use(other, model.name, started_at=timezone.now(), prompt_tokens=10, completion_tokens=0)
        limit(cast, 10_000)
        limit(cast, 2_200, api_key=key)
        uses = uses_of(cast.organization, quotas_of(cast.organization), cached_percent=100)
        assert [(each.used, each.per_mille) for each in uses] == [(1110, 111), (1100, 500)]

    def test_counts_a_members_keys_one_model_and_cached_tokens_by_their_weight(self, cast: Cast, model: Model) -> None:
        hers = issue(project=cast.project, name="hers", actor=cast.ada).api_key
        his = issue(project=cast.project, name="his", actor=cast.ben).api_key
        now = timezone.now()
        use(hers, model.name, started_at=now, prompt_tokens=1000, cached_tokens=800, completion_tokens=100)
        use(his, model.name, started_at=now, prompt_tokens=50, completion_tokens=5)
        limit(cast, 10_000, member=Member.objects.get(user=cast.ada, organization=cast.organization))
        limit(cast, 10_000, model="another")
        limit(cast, 10_000, model=model.name)
        limit(cast, 10_000, api_key=his, model=model.name)
        used = {
            (snapshot.as_limit(each.quota).scope, each.quota.model): each.used
            for each in uses_of(cast.organization, quotas_of(cast.organization), cached_percent=25)
        }
        assert used == {
            ("member", ""): 200 + 200 + 100,
            ("organization", "another"): 0,
            ("organization", model.name): 500 + 55,
            ("api_key", model.name): 55,
        }

    @pytest.mark.parametrize(
        ("zone", "window", "now", "start", "end"),
        [
            # The local month begins nine hours before UTC's.
            ("Asia/Tokyo", "month", "2026-11-30T15:00", "2026-11-30T15:00", "2026-12-31T15:00"),
            ("Asia/Tokyo", "month", "2026-11-30T14:59", "2026-10-31T15:00", "2026-11-30T15:00"),
            # The day the clocks go back has 25 hours, the day they go forward 23.
            ("Europe/Amsterdam", "day", "2026-10-25T12:00", "2026-10-24T22:00", "2026-10-25T23:00"),
            ("Europe/Amsterdam", "day", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),
            # A week begins on Monday, also over a change of clocks.
            ("Europe/Amsterdam", "week", "2026-10-25T12:00", "2026-10-18T22:00", "2026-10-25T23:00"),
            ("UTC", "month", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ],
    )
    def test_windows_are_those_of_the_organizations_calendar(
        self, zone: str, window: str, now: str, start: str, end: str
    ) -> None:
        moment, *expected = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (now, start, end))
        assert list(window_bounds(window, zone, moment)) == expected


def calls_at(*times: str, lasting_s: int = 10, tokens: int = 100) -> list[FinishedCall]:
    starts = [datetime.fromisoformat(f"2026-11-{time}+00:00") for time in times]
    counts = RecordCounts(1, tokens, 0, 0, tokens * 1000)
    started_us = [microseconds_of(start) for start in starts]
    return [FinishedCall(at_us, at_us + lasting_s * 1_000_000, counts) for at_us in started_us]


def replayed(calls: list[FinishedCall], kind: str, window: str, amount: int) -> tuple[int, str | None]:
    limit = snapshot.QuotaLimit(0, "organization", 1, "", "", "hard", kind, window, amount)
    found = replay(calls, limit, "Asia/Tokyo", cached_percent=100)
    assert found.calls == len(calls)
    return found.refused, found.first_at and found.first_at.strftime("%dT%H:%M:%S")


class TestReplay:
    def test_a_minutes_limit_refills_evenly(self) -> None:
        calls = calls_at("10T12:00:00", "10T12:00:10", "10T12:00:20", "10T12:00:40", "10T12:01:30")
        # One comes back every 30 s.
        assert replayed(calls, "requests", "minute", 2) == (1, "10T12:00:20")
        assert replayed(calls, "tokens", "minute", 200) == (1, "10T12:00:20")
        assert replayed(calls, "tokens", "minute", 99) == (5, "10T12:00:00")

    def test_a_day_and_a_week_are_the_organizations(self) -> None:
        # 15:00 UTC is midnight in Tokyo; the 15th is a Sunday.
        calls = calls_at("10T14:58:00", "10T14:59:00", "10T15:00:00", "15T14:59:59", "15T15:00:00")
        assert replayed(calls, "requests", "day", 1) == (1, "10T14:59:00")
        assert replayed(calls, "spend", "week", 300_000) == (1, "15T14:59:59")
        assert replayed(calls, "spend", "lifetime", 300_000) == (2, "15T14:59:59")

    def test_calls_at_one_time_give_their_place_back_when_they_end(self) -> None:
        calls = calls_at("10T12:00:00", "10T12:00:05", "10T12:00:10", "10T12:00:15")
        assert replayed(calls, "concurrency", "now", 1) == (2, "10T12:00:05")
        assert replayed(calls, "concurrency", "now", 2) == (0, None)
        assert replayed(calls, "requests", "day", 0) == (4, "10T12:00:00")


class TestPage:
    def test_admin_sets_a_budget_in_money(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        address = reverse("portal:limits", args=[cast.organization.slug])
        answer = signed_in(cast.dee).post(address, {"scope": "", "what": "spend:month", "amount": "$1,025.50"})
        assert answer.status_code == 302
        assert Quota.objects.get().limit == 1_025_500_000_000

    def test_admin_tries_a_members_limit_of_one_model_out(
        self, cast: Cast, model: Model, signed_in: Callable[..., Client]
    ) -> None:
        address = reverse("portal:limits", args=[cast.organization.slug])
        member = Member.objects.get(user=cast.ben, organization=cast.organization)
        form = {"scope": f"member:{member.id}", "what": "output_tokens:minute", "amount": "500", "mode": "shadow"}
        assert signed_in(cast.dee).post(address, form | {"model": model.name}).status_code == 302
        quota = Quota.objects.get()
        assert (quota.member, quota.model, quota.mode, quota.kind) == (member, model.name, "shadow", "output_tokens")
        page = signed_in(cast.dee).get(address).content.decode()
        assert model.name in page
        assert cast.ben.email in page

    def test_admin_sees_what_a_limit_would_have_refused_last_week(
        self, cast: Cast, model: Model, signed_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
        address = reverse("portal:limit_try", args=[cast.organization.slug])
        form = {"scope": f"api_key:{key.id}", "what": "requests:day", "amount": "2"}
        assert "No call of the last seven days" in signed_in(cast.dee).post(address, form).content.decode()
        noon = (timezone.now() - timedelta(days=2)).replace(hour=12, minute=0)
        for minutes in range(5):
            use(key, model.name, started_at=noon + timedelta(minutes=minutes), price_at=timezone.now())
        assert "refused 3 of 5 calls" in signed_in(cast.dee).post(address, form).content.decode()
        assert "none of 5 calls" in signed_in(cast.dee).post(address, form | {"amount": "5"}).content.decode()
        assert "whole number" in signed_in(cast.dee).post(address, form | {"amount": "many"}).content.decode()
        assert not Quota.objects.exists()
        monkeypatch.setattr("portal.quotas.replay.CALLS_LOOKED_AT", 4)
        page = signed_in(cast.dee).post(address, form).content.decode()
        assert "refused 2 of 4 calls" in page
        assert "The newest 4 calls of the week were looked at" in page

    @pytest.mark.parametrize("amount", ["", "many", "-1", "1.5", "9" * 25])
    def test_odd_amount_is_refused_at_the_field(
        self, cast: Cast, signed_in: Callable[..., Client], amount: str
    ) -> None:
        address = reverse("portal:limits", args=[cast.organization.slug])
        answer = signed_in(cast.dee).post(address, {"scope": "", "what": "tokens:day", "amount": amount})
        assert answer.status_code == 400
        assert answer.context["form"].errors["amount"]

    def test_scope_of_another_organization_is_refused(self, cast: Cast, signed_in: Callable[..., Client]) -> None:
        theirs = Member.objects.get(user=cast.cyd).organization.projects.get()
        address = reverse("portal:limits", args=[cast.organization.slug])
        form = {"scope": f"project:{theirs.id}", "what": "tokens:day", "amount": "1"}
        assert signed_in(cast.dee).post(address, form).status_code == 400


@pytest.fixture
def key_limits(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> list[Quota]:
    """Of five keys, the oldest first, beside one of the organization; a page shows two."""
    monkeypatch.setattr("portal.quotas.views.KEY_LIMITS_SHOWN", 2)
    limit(cast, 1000)
    names = ("alpha", "beta", "gamma", "delta", "epsilon")
    keys = [issue(project=cast.project, name=name, actor=cast.ada).api_key for name in names]
    return [found for key in keys if (found := limit(cast, 10, api_key=key))]


class TestLimitsOfManyKeys:
    """More than a page shows have a list of their own."""

    def test_each_is_on_one_page_and_the_organizations_on_all(
        self, cast: Cast, key_limits: list[Quota], signed_in: Callable[..., Client]
    ) -> None:
        browser = signed_in(cast.dee)
        address = reverse("portal:limits", args=[cast.organization.slug])
        seen, after = [], ""
        while True:
            page = browser.get(address, {"after": after} if after else {})
            assert [use.quota.api_key for use, _values in page.context["uses"]] == [None]
            rows = [use.quota for use, _values in page.context["key_uses"]]
            assert len(rows) <= 2
            seen += rows
            if (after := page.context["listing"].next) is None:
                break
            assert f'href="?after={after}#key-limits"' in page.content.decode()
        assert seen == key_limits[::-1]

    def test_a_key_is_found_by_its_name_or_how_it_begins(
        self, cast: Cast, key_limits: list[Quota], signed_in: Callable[..., Client]
    ) -> None:
        browser = signed_in(cast.dee)
        address = reverse("portal:limits", args=[cast.organization.slug])
        wanted = key_limits[2].api_key
        assert wanted is not None
        theirs = Member.objects.get(user=cast.cyd).organization
        other = issue(project=theirs.projects.get(), name="gamma", actor=cast.cyd).api_key
        change_quota(
            organization=theirs, api_key=other, kind=QuotaKind.TOKENS, window=Window.DAY, limit=1, actor=cast.cyd
        )
        for search in ("GAMM", wanted.prefix, f"{wanted.prefix}…"):
            page = browser.get(address, {"q": search})
            assert [use.quota for use, _values in page.context["key_uses"]] == [key_limits[2]]
        assert "No key with a limit has" in browser.get(address, {"q": "omega"}).content.decode()

    def test_gauges_are_those_of_the_page(
        self, cast: Cast, key_limits: list[Quota], signed_in: Callable[..., Client]
    ) -> None:
        browser = signed_in(cast.dee)
        page = browser.get(reverse("portal:limits", args=[cast.organization.slug]), {"after": key_limits[3].id})
        shown = [key_limits[2].id, key_limits[1].id]
        organizations = Quota.objects.get(api_key=None).id
        assert page.context["shown"] == ",".join(map(str, [organizations, *shown]))
        asked = {"shown": page.context["shown"], "after": key_limits[3].id}
        gauges = reverse("portal:limit_gauges", args=[cast.organization.slug])
        text = f"?shown={asked['shown']}&amp;after={asked['after']}"
        assert f'hx-get="{gauges}{text}"' in page.content.decode()
        # A newer limit is on another page.
        limit(cast, 10, api_key=issue(project=cast.project, name="zeta", actor=cast.ada).api_key)
        answer = browser.get(gauges, asked)
        assert [use.quota.id for use in answer.context["uses"]] == [organizations, *shown]
        assert "Limits were set or removed" not in answer.content.decode()
        key_limits[2].delete()
        answer = browser.get(gauges, asked)
        assert [use.quota.id for use in answer.context["uses"]] == [organizations, key_limits[1].id]
        assert f'href="{reverse("portal:limits", args=[cast.organization.slug])}?after={key_limits[3].id}"' in (
            answer.content.decode()
        )

    def test_an_old_keys_limit_is_changed_where_it_is_shown(
        self, cast: Cast, key_limits: list[Quota], signed_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("portal.quotas.views.KEYS_OFFERED", 1)
        browser = signed_in(cast.dee)
        address = f"{reverse('portal:limits', args=[cast.organization.slug])}?q=alpha"
        ((_use, values),) = browser.get(address).context["key_uses"]
        assert f"api_key:{key_limits[0].api_key_id}" in values
        form = {"scope": f"api_key:{key_limits[0].api_key_id}", "what": "tokens:day", "amount": "77"}
        assert browser.post(address, form)["Location"] == address
        key_limits[0].refresh_from_db()
        assert key_limits[0].limit == 77

    def test_few_are_one_table_without_pages(
        self, cast: Cast, key_limits: list[Quota], signed_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("portal.quotas.views.KEY_LIMITS_SHOWN", len(key_limits))
        page = signed_in(cast.dee).get(reverse("portal:limits", args=[cast.organization.slug]))
        keys = [use.quota.api_key and use.quota.api_key.name for use, _values in page.context["uses"]]
        assert keys == [None, "alpha", "beta", "delta", "epsilon", "gamma"]
        assert 'id="key-limits"' not in page.content.decode()

    @pytest.mark.parametrize("after", ["x", "-1", "²", "9" * 30])
    @pytest.mark.usefixtures("key_limits")
    def test_an_odd_page_is_the_first(self, cast: Cast, signed_in: Callable[..., Client], after: str) -> None:
        page = signed_in(cast.dee).get(reverse("portal:limits", args=[cast.organization.slug]), {"after": after})
        assert len(page.context["key_uses"]) == 2


def test_database_refuses_to_change_or_delete_an_audit_event(cast: Cast) -> None:
    for statement in ("UPDATE portal_auditevent SET reason = 'x'", "DELETE FROM portal_auditevent"):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
