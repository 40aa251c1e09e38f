"""Alerts of soft limits that let calls through."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.alerts.evaluation import evaluate_all
from portal.alerts.kinds import RuleKind
from portal.alerts.models import Alert
from portal.alerts.services import create_rule
from portal.api_keys.services import issue
from portal.organizations.models import Organization
from portal.quotas import snapshot
from portal.quotas.models import Mode, Quota
from portal.users.models import User
from tests.factories.portal import Cast


def test_of_very_many_limits_only_those_that_let_calls_through_are_looked_at(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.quotas.selectors.IDS_AT_ONCE", 2)

    def limit_key(organization: Organization, actor: User, mode: Mode) -> Quota:
        key = issue(project=organization.projects.get(), name="key", actor=actor).api_key
        return Quota.objects.create(
            organization=organization, api_key=key, kind="requests", window="day", limit=1, mode=mode
        )

    soft = [limit_key(cast.organization, cast.ada, Mode.SOFT) for _ in range(4)]
    now_hard = limit_key(cast.organization, cast.ada, Mode.HARD)
    theirs = limit_key(Organization.objects.get(members__user=cast.cyd), cast.cyd, Mode.SOFT)
    found = create_rule(organization=cast.organization, kind=RuleKind.SOFT_LIMIT, actor=cast.ada)
    let_through = {quota.id: 7 for quota in (*soft[:3], now_hard, theirs)} | {theirs.id + 1: 7}
    key = snapshot.exceeded_key(cast.organization.id)
    snapshot.client().hset(key, mapping={str(number): count for number, count in let_through.items()})
    with CaptureQueriesContext(connection) as asked:
        evaluate_all(now=timezone.now())
    assert set(Alert.objects.filter(rule=found).values_list("threshold", flat=True)) == {each.id for each in soft[:3]}
    assert sum('FROM "portal_quota"' in each["sql"] for each in asked.captured_queries) == 3
    assert not snapshot.client().exists(key)
