"""`manage.py capacity --gpu-hour 2.00`: what each model yields and costs, or the same of a given throughput."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from billing.money import format_nano
from portal.operations import economics
from portal.operations.capacity import Assumptions, Yield, compute
from portal.operations.forms import CapacityForm

# GPU hours are compared with the list prices, which are in it.
CURRENCY = "USD"


class Command(BaseCommand):
    help = "GPU-hours and cost per million output tokens, tokens per 30-day month, and the margin of each model."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tokens-per-s", help="Output of a deployment at full load; as measured if not given.")
        parser.add_argument("--compare-with", help="Another throughput, for a second line.")
        parser.add_argument("--gpus", help="GPUs of a deployment; 1 if not given.")
        parser.add_argument("--gpu-hour", help="Price of a GPU hour; 2.00 if not given.")
        parser.add_argument("--load", help="Percent of the paid time that the GPUs are busy; 70 if not given.")

    def handle(self, *args: Any, **options: Any) -> None:
        names = ("tokens_per_s", "compare_with", "gpus", "gpu_hour", "load")
        form = CapacityForm({name: options[name] for name in names})
        if not form.is_valid():
            reasons = (f"--{name.replace('_', '-')}: {errors[0]}" for name, errors in form.errors.items())
            raise CommandError("; ".join(reasons))
        given = form.cleaned_data
        terms = {"gpus": given["gpus"], "gpu_hour_nano": form.gpu_hour_nano, "load": form.load_share}
        rates = [rate for rate in (given["compare_with"], given["tokens_per_s"]) if rate]
        for rate in rates:
            self.stdout.write(f"{rate} tokens/s: {_line(compute(Assumptions(rate, **terms)))}")
        if rates:
            return
        for row in economics.by_model(tokens_per_s=None, now=timezone.now(), **terms):
            if row.made is None:
                self.stdout.write(f"{row.model}: no throughput was measured; give one with --tokens-per-s")
                continue
            assert row.measured is not None
            self.stdout.write(f"{row.model}: {row.measured.tokens_per_s} tokens/s, {_line(row.made)}{_margin(row)}")


def _line(made: Yield) -> str:
    return (
        f"{made.gpu_hours_per_million.quantize(Decimal('0.001'))} GPU-hours per million,"
        f" {made.tokens_per_gpu_month / 1_000_000:,.0f} million tokens per GPU and 30-day month,"
        f" {_cents(made.cost_per_million_nano)} per million"
    )


def _margin(row: economics.ModelEconomics) -> str:
    if row.margin_share is None or row.revenue_per_million_nano is None:
        return ""
    return f", sold at {_cents(row.revenue_per_million_nano)}, margin {row.margin_share * 100:.1f} %"


def _cents(amount_nano: int) -> str:
    return format_nano(round(amount_nano, -7), CURRENCY)
