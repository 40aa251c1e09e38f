"""Staff may look at every table of billing in the admin and change none."""

import re
from datetime import UTC, datetime

import pytest
from django.apps import apps
from django.contrib import admin
from django.urls import reverse

from billing.invoices.services import draft_invoice, finalize_invoice
from billing.ledger.models import LedgerTransaction
from billing.money import format_nano
from billing.usage.models import UsageRecord
from tests.factories.billing import USD, make_account, make_calls, make_price

SHOWN = [model for model in apps.get_app_config("billing").get_models() if admin.site.is_registered(model)]


@pytest.mark.django_db
@pytest.mark.parametrize("model", SHOWN, ids=lambda model: model.__name__)
def test_pages_show_and_nothing_can_be_added_changed_or_deleted(admin_client, model):
    account = make_account(credit_nano=USD)
    make_calls(account, make_price())
    finalize_invoice(
        draft_invoice(organization_id=account.organization_id, period="2026-05"), now=datetime(2026, 6, 2, tzinfo=UTC)
    )
    name = f"admin:billing_{model._meta.model_name}"
    assert admin_client.get(reverse(f"{name}_changelist")).status_code == 200
    assert admin_client.get(reverse(f"{name}_add")).status_code == 403
    found = model.objects.first()
    if found is not None:
        page = reverse(f"{name}_change", args=[found.pk])
        assert admin_client.get(page).status_code == 200
        assert admin_client.post(page, {}).status_code == 403
        assert admin_client.post(reverse(f"{name}_delete", args=[found.pk]), {"post": "yes"}).status_code == 403


@pytest.mark.django_db
def test_amounts_are_money_on_a_rows_page_and_in_the_rows_below_it(admin_client):
    account = make_account(credit_nano=USD)
    make_calls(account, make_price())
    invoice = finalize_invoice(
        draft_invoice(organization_id=account.organization_id, period="2026-05"), now=datetime(2026, 6, 2, tzinfo=UTC)
    )
    record = UsageRecord.objects.exclude(cost_nano=0)[0]
    booked = LedgerTransaction.objects.filter(entries__amount_nano=record.cost_nano)[0]
    line = invoice.lines.exclude(amount_nano=0)[0]
    for row, amount_nano in (
        (record, record.cost_nano),
        (record, record.hold_nano),
        (record.price, record.price.output_nano),
        (booked, record.cost_nano),
        (invoice, invoice.usage_nano),
        (invoice, line.amount_nano),
        (invoice, line.unit_price_nano),
    ):
        page = admin_client.get(reverse(f"admin:billing_{row._meta.model_name}_change", args=[row.pk])).content.decode()
        assert format_nano(amount_nano, "USD") in page
        assert amount_nano == 0 or not re.search(rf"\b{amount_nano}\b", page)
