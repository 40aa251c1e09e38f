"""`manage.py seed_scale`: a small one has balanced books, rollups and invoices that are as the services make them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import Count, Sum
from django.utils import timezone

from billing.invoices.composition import compose_bound
from billing.invoices.models import Invoice, InvoiceLine
from billing.ledger import audit
from billing.pricing.rating import FREE, RatedCost, rate
from billing.reconciliation.selectors import day_rates, read_period
from billing.rollups.models import ALL_ORGANIZATIONS, ServiceRollup
from billing.rollups.services import compare_day
from billing.usage.models import UsageAdjustment, UsageRecord
from billing.usage.partitions import partition_sizes
from billing.usage.request_ids import attempt_of, moment_of
from portal.api_keys.models import ApiKey
from portal.operations.selectors import ViewFilters, view
from portal.organizations.models import Member, Organization

pytestmark = pytest.mark.django_db(transaction=True)
# From before the last month until now: one month is whole, and has invoices.
SIZE = {"organizations": 12, "keys": 2000, "records": 500, "days": 62}
COSTS = tuple(name.replace("_nano", "_cost_nano") for name in RatedCost._fields)


@pytest.fixture
def months() -> Iterator[None]:
    """Seeding divides the records' table by months; afterwards it is as it was."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'billing_usage_record_first'"
        )
        bound = cursor.fetchone()[0]
        before = set(partition_sizes())
        yield
        with transaction.atomic():
            cursor.execute("TRUNCATE billing_usage_record CASCADE")
            for name in set(partition_sizes()) - before:
                cursor.execute(f"ALTER TABLE billing_usage_record DETACH PARTITION {name}")
                cursor.execute(f"DROP TABLE {name}")
            cursor.execute("ALTER TABLE billing_usage_record DETACH PARTITION billing_usage_record_first")
            cursor.execute(f"ALTER TABLE billing_usage_record ATTACH PARTITION billing_usage_record_first {bound}")


def test_books_rollups_and_invoices_agree_and_a_second_seeding_is_refused(months: None) -> None:
    output = StringIO()
    call_command("seed_scale", stdout=output, **SIZE)
    assert "usage records 1 to 500 of 500" in output.getvalue()
    assert (Organization.objects.count(), ApiKey.objects.count(), UsageRecord.objects.count()) == (12, 2000, 500)
    keys = Organization.objects.annotate(keys=Count("api_keys")).order_by("id").values_list("keys", flat=True)
    assert list(keys) == sorted(keys, reverse=True)
    assert Member.objects.count() > 12
    assert audit.compare() == []
    now = timezone.now()
    for days in range(SIZE["days"] + 1):
        assert compare_day(now - timedelta(days=days), now=now) == []
    days = ServiceRollup.objects.filter(organization_id=ALL_ORGANIZATIONS, grain_s=86_400)
    cost = sum(model.objects.aggregate(cost=Sum("cost_nano"))["cost"] for model in (UsageRecord, UsageAdjustment))
    assert days.aggregate(cost=Sum("cost_nano"))["cost"] == cost
    found = view(ViewFilters(range="30d", group="organization"), now=now)
    assert found["sums"]["requests"] > 0
    assert any(value for value in found["gauges"]["kv"]["p95"])
    with pytest.raises(CommandError, match="seeded already"):
        call_command("seed_scale", **SIZE)
    check_records()
    check_invoices()
    check_reconciliation()


def check_records() -> None:
    for record in UsageRecord.objects.select_related("price"):
        counts = (record.prompt_tokens, record.cached_tokens, record.completion_tokens)
        cost = FREE if record.status == "failed" else rate(record.price, *counts)
        assert tuple(getattr(record, name) for name in COSTS) == cost
        assert attempt_of(record.request_id) == 1
        assert timedelta() <= record.started_at - moment_of(record.request_id) < timedelta(milliseconds=1)
    keys = ApiKey.objects.in_bulk(UsageRecord.objects.values_list("api_key_id", flat=True))
    assert all(
        (key.organization_id, key.project_id) == (row.organization_id, row.project_id)
        for row in UsageRecord.objects.all()
        for key in [keys[row.api_key_id]]
    )
    # All are in partitions of whole months.
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM billing_usage_record_first")
        assert cursor.fetchone()[0] == 0


def check_invoices() -> None:
    assert Invoice.objects.exists()
    for invoice in Invoice.objects.all():
        expected = compose_bound(
            organization_id=invoice.organization_id,
            invoice_id=invoice.id,
            start=invoice.period_start,
            currency=invoice.currency,
        )
        assert [said(line) for line in invoice.lines.all()] == [said(line) for line in expected.lines]
        for name in ("usage_nano", "credit_nano", "absorbed_nano", "rounding_nano", "credit_minor", "total_minor"):
            assert getattr(invoice, name) == getattr(expected, name)
        bound = UsageRecord.objects.filter(invoice=invoice)
        assert bound.aggregate(cost=Sum("cost_nano"))["cost"] == invoice.usage_nano
        assert not bound.exclude(started_at__gte=invoice.period_start, started_at__lt=invoice.period_end).exists()


def said(line: InvoiceLine) -> tuple[object, ...]:
    names = ("kind", "model", "price_id", "token_kind", "tokens", "unit_price_nano", "amount_nano", "amount_minor")
    return tuple(getattr(line, name) for name in names)


def check_reconciliation() -> None:
    now = timezone.now()
    rates = day_rates(read_period(now - timedelta(days=SIZE["days"] + 1), now))
    assert sum(rate.differ for rate in rates) == UsageAdjustment.objects.count() == 1
    assert sum(rate.equal for rate in rates) > 0.9 * SIZE["records"]
    assert sum(rate.unsettled for rate in rates) == 1


@pytest.mark.parametrize("options", [{"records": 0}, {"keys": 3, "organizations": 5}])
def test_impossible_sizes_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(CommandError, match="at least"):
        call_command("seed_scale", **options)
