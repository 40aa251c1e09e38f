"""A seeded database has balanced books, rollups that equal its records, and is always the same."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Count, Sum
from django.utils import timezone

from billing.ledger import audit
from billing.rollups.models import ALL_ORGANIZATIONS, ServiceRollup
from billing.rollups.services import compare_day
from billing.usage.models import UsageRecord
from portal.api_keys.models import ApiKey
from portal.operations.selectors import ViewFilters, view
from portal.organizations.models import Organization

pytestmark = pytest.mark.django_db(transaction=True)
SIZE = {"organizations": 12, "keys": 60, "records": 200, "days": 2}


def test_books_and_rollups_agree_and_a_second_seeding_is_refused() -> None:
    output = StringIO()
    call_command("seed_scale", stdout=output, **SIZE)
    assert "200 of 200 usage records" in output.getvalue()
    assert (Organization.objects.count(), ApiKey.objects.count(), UsageRecord.objects.count()) == (12, 60, 200)
    keys = Organization.objects.annotate(keys=Count("api_keys")).order_by("id").values_list("keys", flat=True)
    assert list(keys) == sorted(keys, reverse=True)
    assert audit.compare() == []
    now = timezone.now()
    for days in range(3):
        assert compare_day(now - timedelta(days=days), now=now) == []
    days = ServiceRollup.objects.filter(organization_id=ALL_ORGANIZATIONS, grain_s=86_400)
    records = UsageRecord.objects.aggregate(cost=Sum("cost_nano"))
    assert days.aggregate(cost=Sum("cost_nano")) == records
    found = view(ViewFilters(range="24h", group="organization"), now=now)
    assert found["sums"]["requests"] > 0
    assert any(value for value in found["gauges"]["kv"]["p95"])
    with pytest.raises(CommandError, match="seeded already"):
        call_command("seed_scale", **SIZE)


@pytest.mark.parametrize("options", [{"records": 0}, {"keys": 3, "organizations": 5}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(CommandError, match="at least"):
        call_command("seed_scale", **options)
