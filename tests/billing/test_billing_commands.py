"""What an operator runs by hand, and what beat runs."""

import pytest
from django.core.management import CommandError, call_command

from billing import tasks
from billing.invoices.models import Invoice
from billing.ledger.models import OrganizationBalance
from billing.payments.models import InvoicePush
from tests.factories.billing import USD, make_account, make_calls, make_price

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    account = make_account(credit_nano=USD)
    make_calls(account, make_price(), 3)
    return account


def test_a_month_is_previewed_and_run(ada, capsys):
    call_command("run_invoices", period="2026-05", preview=True)
    assert "drafted: 1" in capsys.readouterr().out
    assert Invoice.objects.get().status == "draft"
    call_command("run_invoices", period="2026-05")
    assert "finalized: 1" in capsys.readouterr().out
    call_command("run_invoices", period="2026-05")
    assert "already final: 1" in capsys.readouterr().out
    call_command("run_invoices")
    assert "finalized: 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [({"period": "May"}, "YYYY-MM"), ({"preview": True}, "--preview needs --period")],
)
def test_odd_options_are_refused(options, message):
    with pytest.raises(CommandError, match=message):
        call_command("run_invoices", **options)


def test_balances_are_compared_and_rebuilt(ada, capsys):
    call_command("rebuild_balances", compare=True)
    assert "agree" in capsys.readouterr().out
    OrganizationBalance.objects.update(credit_nano=1)
    with pytest.raises(CommandError, match="1 differences"):
        call_command("rebuild_balances", compare=True)
    assert f"credit of organization {ada.organization_id}: kept 1" in capsys.readouterr().out
    call_command("rebuild_balances")
    assert OrganizationBalance.objects.get(organization_id=ada.organization_id).credit_nano == USD - 999_000


def test_the_tasks_run_the_month_and_push_its_invoices(ada, settings, tmp_path):
    settings.VAR_DIR, settings.STRIPE_SECRET_KEY = tmp_path, ""
    tasks.run_month("2026-05")
    invoice = Invoice.objects.get()
    tasks.push_invoice(invoice.id)
    assert InvoicePush.objects.get(invoice=invoice).state == "pushed"
    assert (tmp_path / "payments" / f"{invoice.number}.json").exists()
    tasks.run_month()
    tasks.expire_credits()
    tasks.push_pending()
