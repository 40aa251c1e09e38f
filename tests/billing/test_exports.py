"""Every file of a month adds up to the same: chart = export = invoice = ledger, chargeback to the cent."""

import csv
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import ExportRefused, InvalidPeriod
from billing.exports import focus, reports
from billing.exports.csv_file import CsvWriter
from billing.exports.models import Export
from billing.exports.names import Names, names_wanted
from billing.exports.parquet import ParquetWriter
from billing.exports.selectors import is_downloadable
from billing.exports.services import file_name, forget_and_find_left, make, path_of, request_export
from billing.exports.sources import groups, scope_of
from billing.exports.table import Column
from billing.fees.services import add_fee
from billing.invoices.services import draft_invoice, finalize_invoice
from billing.ledger.models import LedgerEntry
from billing.money import from_minor
from billing.tax.services import set_rate
from billing.usage.adjustments import Counts, adjust_record
from billing.usage.models import UsageRecord
from billing.usage.selectors import summary
from tests.billing.parquet_reader import read
from tests.factories.billing import NOON, USD, make_account, make_calls, make_price

MAY = "2026-05"
# Hypothesis wants its bounds without a zone.
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
IN_MAY, IN_JUNE = datetime(2026, 5, 10, tzinfo=UTC), datetime(2026, 6, 2, tzinfo=UTC)


@pytest.fixture
def folder(settings, tmp_path):
    settings.VAR_DIR = tmp_path
    return tmp_path


@pytest.fixture
def ada(db, settings, folder):
    """Two models, three projects, keys, end users, failures, a correction, credit, tax and a fee."""
    settings.INVOICE_ISSUER_COUNTRY = "DE"
    set_rate(country="DE", name="VAT", percent=Decimal(19), effective_from=date(2020, 1, 1), actor_id=None)
    account = make_account(credit_nano=3 * USD, credit_limit_nano=1000 * USD, time_zone="Europe/Berlin")
    own = make_price("big", input_nano=333_333_333, organization_id=account.organization_id)
    make_price("big", at=datetime(2021, 1, 1, tzinfo=UTC))
    small = make_price("small")
    for number in range(30):
        make_calls(
            account,
            (own, small)[number % 2],
            project_id=(1, 2, None)[number % 3],
            api_key_id=number % 4 + 1,
            end_user=("", "u1", "u2")[number % 3],
            started_at=NOON + timedelta(hours=7 * number - 100),
            prompt_tokens=1_000_003 * number,
            cached_tokens=7 * number,
            completion_tokens=12_345 * number,
            status=("completed", "completed", "cancelled", "failed")[number % 4],
        )
    record = UsageRecord.objects.filter(status="completed", completion_tokens__gt=0).latest("started_at")
    counts = Counts(record.prompt_tokens, record.cached_tokens, record.completion_tokens + 999, 0)
    adjust_record(record=record, status="completed", counts=counts, key="c", reason="receipt", now=IN_MAY)
    add_fee(
        organization_id=account.organization_id,
        name="Seats",
        quantity=3,
        unit_amount_minor=19_99,
        starts_on=date(2026, 5, 12),
        now=IN_MAY,
        actor_id=None,
    )
    return account


def issue(account, period=MAY, now=IN_JUNE):
    return finalize_invoice(draft_invoice(organization_id=account.organization_id, period=period, now=now), now=now)


def ask(account, kind="usage", file_format="csv", period=MAY, **fields):
    return request_export(
        organization_id=account.organization_id,
        kind=kind,
        file_format=file_format,
        period=period,
        actor_id=None,
        **fields,
    )


def rows_of(account, kind="usage", **fields):
    export = make(ask(account, kind, **fields).id)
    assert (export.state, export.error) == ("finished", "")
    with path_of(export).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert export.row_count == len(rows)
    return rows


def total(rows, column):
    return sum((Decimal(row[column] or 0) for row in rows), Decimal(0))


def money(nano):
    return Decimal(nano).scaleb(-9)


def test_chart_is_export_is_invoice_is_ledger(ada):
    invoice = issue(ada)
    scope = scope_of(ask(ada))
    chart = summary(ada.organization_id, scope.period.start, scope.period.end, "day", time_zone=ada.time_zone)
    charted = sum(day.cost_nano for day in chart)
    used = LedgerEntry.objects.filter(transaction__kind__in=["usage", "adjustment"], account__kind="revenue").aggregate(
        total=Sum("amount_nano")
    )["total"]
    assert charted == used == invoice.usage_nano
    exported = rows_of(ada)
    assert total(exported, "cost") == money(charted)
    focused = rows_of(ada, "focus")
    assert total(focused, "BilledCost") == money(from_minor(invoice.total_minor, "USD"))
    usage_rows = [row for row in focused if row["ChargeCategory"] == "Usage"]
    assert total(usage_rows, "BilledCost") == money(charted)
    for division in reports.DIVISIONS:
        assert total(rows_of(ada, "showback", group_by=division), "cost") == money(charted)
        charged = rows_of(ada, "chargeback", group_by=division)
        assert total(charged, "total") == money(from_minor(invoice.total_minor, "USD"))
        assert total(charged, "tax") == money(from_minor(invoice.tax_minor, "USD"))
        assert total(charged, "credit") == -money(from_minor(invoice.credit_minor, "USD"))
        assert total(charged, "usage") + total(charged, "fees") == money(from_minor(invoice.subtotal_minor, "USD"))
        for row in charged:
            assert Decimal(row["total"]) == sum(Decimal(row[name]) for name in ("usage", "fees", "credit", "tax"))
    receivable = LedgerEntry.objects.filter(account__kind="receivable").aggregate(t=Sum("amount_nano"))["t"]
    assert receivable == -from_minor(invoice.total_minor, "USD")


def test_requests_can_be_narrowed_and_corrections_are_rows_of_their_own(ada):
    rows = rows_of(ada)
    assert len(rows) == 31
    assert [row["kind"] for row in rows].count("adjustment") == 1
    narrowed = rows_of(ada, project_id=1, model="small", end_user="")
    assert narrowed
    assert {(row["project_id"], row["model"]) for row in narrowed} == {("1", "small")}
    assert {row["end_user"] for row in rows_of(ada, end_user="u1")} == {"u1"}
    assert len(rows_of(ada, api_key_id=2)) < 31


def test_parquet_says_the_same_as_csv(ada):
    for kind, fields in (("usage", {}), ("focus", {}), ("showback", {"group_by": "project"})):
        as_csv = rows_of(ada, kind, **fields)
        export = make(ask(ada, kind, "parquet", **fields).id)
        found, notes = read(path_of(export).read_bytes())
        assert notes["period"] == MAY
        assert notes.get("focus_version") == ("1.2" if kind == "focus" else None)
        assert len(found) == len(as_csv) == export.row_count
        for mine, theirs in zip(found, as_csv, strict=True):
            for name, value in mine.items():
                assert as_text(value) == (Decimal(theirs[name]) if isinstance(value, Decimal) else theirs[name])


def as_text(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return value if isinstance(value, Decimal) else str(value)


class TestFocus:
    """The rules of version 1.2 that a row can break, by column."""

    NOT_NULL = (
        "BilledCost",
        "BillingAccountId",
        "BillingCurrency",
        "BillingPeriodStart",
        "BillingPeriodEnd",
        "ChargeCategory",
        "ChargeFrequency",
        "ChargePeriodStart",
        "ChargePeriodEnd",
        "ContractedCost",
        "EffectiveCost",
        "InvoiceIssuerName",
        "ListCost",
        "ProviderName",
        "PublisherName",
        "ServiceCategory",
        "ServiceName",
        "ServiceSubcategory",
    )
    PRICED = (
        "ContractedUnitPrice",
        "ListUnitPrice",
        "PricingCategory",
        "PricingQuantity",
        "SkuId",
        "SkuPriceId",
    )
    MANDATORY = (
        *NOT_NULL,
        "BillingAccountName",
        "ChargeClass",
        "ChargeDescription",
        "PricingQuantity",
        "PricingUnit",
    )

    @pytest.fixture
    def rows(self, ada):
        issue(ada)
        return rows_of(ada, "focus")

    def test_mandatory_columns_are_there_and_ours_are_marked(self, rows):
        assert set(self.MANDATORY) <= rows[0].keys()
        own = [name for name in rows[0] if name.startswith("x_")]
        assert own == ["x_ApiKeyId", "x_FocusVersion", "x_TokenKind"]
        assert {row["x_FocusVersion"] for row in rows} == {focus.VERSION} == {"1.2"}

    def test_each_row_keeps_the_rules_of_its_columns(self, rows):
        assert {row["ChargeCategory"] for row in rows} == {"Usage", "Purchase", "Credit", "Tax", "Adjustment"}
        for row in rows:
            assert all(row[name] for name in self.NOT_NULL), row
            assert row["ChargeFrequency"] in ("One-Time", "Recurring", "Usage-Based")
            assert row["ChargeClass"] in ("", "Correction")
            assert row["BillingPeriodStart"] < row["BillingPeriodEnd"]
            assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]
            for name in row:
                if name.endswith(("Start", "End")):
                    assert datetime.strptime(row[name], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            is_usage, is_tax = row["ChargeCategory"] == "Usage", row["ChargeCategory"] == "Tax"
            priced = row["ChargeCategory"] in ("Usage", "Purchase") and not row["ChargeClass"]
            for name in self.PRICED:
                assert not (is_tax and row[name])
                assert not (priced and not row[name]), (name, row)
            assert bool(row["ConsumedQuantity"]) == is_usage == bool(row["ConsumedUnit"])
            assert bool(row["PricingQuantity"]) == bool(row["PricingUnit"])
            assert bool(row["SubAccountId"]) == bool(row["SubAccountType"]) == bool(row["SubAccountName"])
            assert bool(row["SkuMeter"]) <= bool(row["SkuId"])
            assert bool(row["ResourceId"]) == bool(row["ResourceType"]) == is_usage
            assert row["InvoiceId"].startswith("INV-")

    def test_unit_price_times_quantity_is_the_contracted_cost(self, rows):
        for row in rows:
            if row["ChargeCategory"] == "Usage":
                for kind in ("Contracted", "List"):
                    product = Decimal(row[f"{kind}UnitPrice"]) * Decimal(row["PricingQuantity"])
                    assert product == Decimal(row[f"{kind}Cost"])
                # Each request was rounded to a billionth.
                assert abs(Decimal(row["ContractedCost"]) - Decimal(row["BilledCost"])) < Decimal("0.00000003")

    def test_a_price_of_ones_own_stands_beside_the_list(self, rows):
        [unit] = {(row["ContractedUnitPrice"], row["ListUnitPrice"]) for row in rows if row["SkuId"] == "big/input"}
        assert tuple(map(Decimal, unit)) == (Decimal("0.333333333"), Decimal("0.4"))

    def test_usage_of_a_month_that_was_billed_is_a_correction(self, ada):
        issue(ada)
        make_calls(ada, make_price("small"), started_at=NOON)
        make_calls(ada, make_price("small"), started_at=datetime(2026, 6, 5, tzinfo=UTC))
        june = issue(ada, "2026-06", datetime(2026, 7, 2, tzinfo=UTC))
        rows = rows_of(ada, "focus", period="2026-06")
        assert {row["ChargeClass"] for row in rows if row["ChargePeriodStart"] < "2026-05-31"} == {"Correction"}
        assert total(rows, "BilledCost") == money(from_minor(june.total_minor, "USD"))

    def test_before_the_invoice_there_is_usage_alone_and_no_invoice_id(self, ada):
        rows = rows_of(ada, "focus")
        assert {row["ChargeCategory"] for row in rows} == {"Usage"}
        assert {row["InvoiceId"] for row in rows} == {""}


def test_names_come_from_who_keeps_them(ada, monkeypatch):
    found = Names("Ada", {1: "Search"}, {2: "=cmd()"})
    receivers = [(None, "no names"), (None, found)]
    monkeypatch.setattr(names_wanted, "send", lambda **_: receivers)
    rows = rows_of(ada)
    assert {row["project"] for row in rows if row["project_id"] == "1"} == {"Search"}
    assert {row["api_key"] for row in rows if row["api_key_id"] == "2"} == {"'=cmd()"}


def test_a_member_has_what_all_keys_that_they_made_used(ada, monkeypatch):
    makers = Names(key_makers={1: (7, "Ada"), 2: (7, "Ada"), 3: (8, "Ben")})
    monkeypatch.setattr(names_wanted, "send", lambda **_: [(None, makers)])
    invoice = issue(ada)
    rows = rows_of(ada, "showback", group_by="member")
    assert {(row["id"], row["name"]) for row in rows} == {("7", "Ada"), ("8", "Ben"), ("", "(none)")}
    by_key = {row["id"]: Decimal(row["cost"]) for row in rows_of(ada, "showback", group_by="api_key")}
    by_member = {row["id"]: Decimal(row["cost"]) for row in rows}
    assert by_member == {"7": by_key["1"] + by_key["2"], "8": by_key["3"], "": by_key["4"]}
    charged = rows_of(ada, "chargeback", group_by="member")
    assert total(charged, "total") == money(from_minor(invoice.total_minor, "USD"))


@given(total=st.integers(-(10**9), 10**9), weights=st.lists(st.integers(-5, 10**12), max_size=30))
def test_shares_are_whole_fair_and_sum_to_the_amount(total, weights):
    parts = reports.allocate(total, weights)
    assert sum(parts) == (total if weights else 0)
    whole = sum(max(weight, 0) for weight in weights)
    if whole:
        for part, weight in zip(parts, weights, strict=True):
            assert abs(part * whole - total * max(weight, 0)) < whole


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=20),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.decimals(-(10**20), 10**20, places=9),
            st.none() | MOMENTS,
            st.none() | st.booleans(),
        ),
        max_size=50,
    )
)
def test_any_table_is_read_back_as_it_was_written(table):
    columns = [
        Column("text"),
        Column("integer", "integer"),
        Column("decimal", "decimal"),
        Column("moment", "moment"),
        Column("boolean", "boolean"),
    ]
    stream = io.BytesIO()
    writer = ParquetWriter(stream, columns, {"a": "b"})
    writer.write(table)
    writer.close()
    rows, notes = read(stream.getvalue())
    assert ([tuple(row.values()) for row in rows], notes) == (table, {"a": "b"})


def test_a_spreadsheet_finds_no_formula():
    stream = io.BytesIO()
    writer = CsvWriter(stream, [Column("a"), Column("b", "decimal")])
    writer.write([("=1+1", Decimal("-1.5")), ("+1", None), ("@x", Decimal("1E-9"))])
    writer.close()
    assert stream.getvalue().decode().split("\r\n")[1:-1] == ["'=1+1,-1.5", "'+1,", "'@x,0.000000001"]


class TestJobs:
    def test_what_does_not_go_together_is_refused(self, ada):
        for wrong, error in (
            ({"period": "2026-13"}, InvalidPeriod),
            ({"kind": "everything"}, ExportRefused),
            ({"kind": "showback"}, ExportRefused),
        ):
            with pytest.raises(error):
                ask(ada, **wrong)
        for _ in range(5):
            ask(ada)
        with pytest.raises(ExportRefused, match="5 exports are being made"):
            ask(ada)

    def test_chargeback_waits_for_the_invoice_and_says_so(self, ada):
        export = make(ask(ada, "chargeback", group_by="project").id)
        assert export.state == "failed"
        assert "is not issued yet" in export.error
        assert not path_of(export).exists()

    def test_one_worker_makes_it_and_a_repeat_does_not(self, ada):
        export = ask(ada)
        assert make(export.id).sha256
        assert make(export.id) is None

    def test_a_killed_workers_export_is_made_anew(self, ada):
        export = ask(ada)
        Export.objects.filter(id=export.id).update(state="running", row_count=7)
        later = export.created_at + timedelta(hours=3)
        assert forget_and_find_left(now=later) == [export.id]
        assert make(export.id).row_count == 31

    def test_files_are_removed_after_their_time(self, ada, settings):
        export = make(ask(ada, "focus").id)
        assert is_downloadable(export, now=export.finished_at)
        assert file_name(export) == "focus-1.2-2026-05.csv"
        forget_and_find_left(now=export.expires_at)
        assert not path_of(export).exists()
        assert not is_downloadable(export, now=export.finished_at)

    def test_another_organization_is_not_in_the_file(self, ada):
        other = make_account()
        make_calls(other, make_price("small"), 3)
        assert len(rows_of(ada)) == 31
        assert sum(group.requests for group in groups(scope_of(ask(other))) if group.token_kind == "input") == 3
