"""Money is whole nano-units: exact, rounded half to even, and never a float."""

import ast
from fractions import Fraction
from pathlib import Path

import pytest
from django.apps import apps
from django.db.models import DecimalField, FloatField
from hypothesis import given
from hypothesis import strategies as st

from billing import money

BILLING = Path(money.__file__).parent


@given(st.integers(-(10**30), 10**30), st.integers(1, 10**12))
def test_division_rounds_half_to_even(numerator, denominator):
    quotient = Fraction(numerator, denominator)
    # Python's round() of a Fraction is exact and rounds half to even.
    assert money.divide_half_even(numerator, denominator) == round(quotient)


@pytest.mark.parametrize(("numerator", "expected"), [(1, 0), (3, 2), (5, 2), (7, 4), (-1, 0), (-3, -2), (-5, -2)])
def test_ties_go_to_the_even_side(numerator, expected):
    assert money.divide_half_even(numerator, 2) == expected


def test_a_million_calls_of_a_ten_millionth_sum_exactly():
    cost_nano = money.token_cost_nano(1, money.parse_nano("0.1"))
    assert cost_nano == money.parse_nano("0.0000001")
    assert sum(cost_nano for _ in range(1_000_000)) == money.parse_nano("0.1")


@given(st.integers(-(10**15), 10**15))
def test_cents_survive_the_way_to_nano_and_back(amount_minor):
    for currency in money.MINOR_DIGITS:
        assert money.to_minor(money.from_minor(amount_minor, currency), currency) == amount_minor


@pytest.mark.parametrize(
    ("nano", "currency", "text"),
    [
        (333_000, "USD", "$0.000333"),
        (5_000_000_000, "USD", "$5.00"),
        (-1_234_567_000_000_000, "USD", "-$1,234,567.00"),
        (0, "EUR", "€0.00"),
        (1_500_000_000, "CHF", "1.50 CHF"),
        (12_000_000_000, "JPY", "¥12"),
    ],
)
def test_amounts_are_printed_exactly(nano, currency, text):
    assert money.format_nano(nano, currency) == text


@given(st.integers(-(10**18), 10**18))
def test_what_is_printed_parses_to_the_same_amount(nano):
    assert money.parse_nano(money.format_nano(nano, "USD").replace("$", "").replace(",", "")) == nano
    assert money.to_decimal(nano) * money.NANO == nano


@pytest.mark.parametrize("text", ["", "abc", "0.0000000001", "NaN", "Infinity", "1,5", "1_0"])
def test_odd_amounts_are_refused(text):
    with pytest.raises(ValueError, match=r"amount|billionth"):
        money.parse_nano(text)


def test_no_money_column_is_a_float_or_a_decimal():
    # Timings, and rates of tax.
    not_money = {"ttft_ms", "duration_ms", "percent", "tax_percent"}
    for model in apps.get_app_config("billing").get_models():
        for field in model._meta.get_fields():
            if isinstance(field, FloatField | DecimalField):
                assert field.name in not_money, f"{model.__name__}.{field.name}"


def test_no_float_is_made_on_the_way_of_money():
    """`/` makes floats of integers: it stands only between Decimals, with layout measures, latencies, and for paths."""
    allowed = {
        "exports/focus.py",
        "exports/services.py",
        "invoices/paper.py",
        "invoices/pdf.py",
        "payments/configuration.py",
        "payments/file_gateway.py",
        "payments/gateway.py",
        "payments/payloads.py",
        "payments/services.py",
        "reconciliation/selectors.py",
        "rollups/histograms.py",
        "rollups/latencies.py",
    }
    for path in BILLING.rglob("*.py"):
        name = path.relative_to(BILLING).as_posix()
        if name.startswith("migrations/") or name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_float_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "float"
            is_float = isinstance(node, ast.Constant) and isinstance(node.value, float)
            is_division = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            if is_float_call or is_float or is_division:
                pytest.fail(f"{name}:{node.lineno} makes a float")
