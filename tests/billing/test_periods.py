"""Billing months are half-open and begin at local midnight, on clock-change days too."""

from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidPeriod
from billing.invoices.periods import month, month_before, month_of

zones = st.sampled_from(sorted(available_timezones() - {"localtime", "Factory"}))
moments = st.integers(1_000_000_000, 4_000_000_000).map(lambda second: datetime.fromtimestamp(second, UTC))


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "zone", "start", "end"),
    [
        ("2026-11", "UTC", utc(2026, 11, 1), utc(2026, 12, 1)),
        ("2026-12", "Asia/Tokyo", utc(2026, 11, 30, 15), utc(2026, 12, 31, 15)),
        # Summer time began on 29 March and ends on 25 October.
        ("2026-03", "Europe/Amsterdam", utc(2026, 2, 28, 23), utc(2026, 3, 31, 22)),
        ("2026-10", "Europe/Amsterdam", utc(2026, 9, 30, 22), utc(2026, 10, 31, 23)),
        ("2026-01", "Pacific/Kiritimati", utc(2025, 12, 31, 10), utc(2026, 1, 31, 10)),
        ("2026-01", "Pacific/Pago_Pago", utc(2026, 1, 1, 11), utc(2026, 2, 1, 11)),
        # The day jumped: 30 December 2011 never was.
        ("2011-12", "Pacific/Apia", utc(2011, 12, 1, 10), utc(2011, 12, 31, 10)),
    ],
)
def test_a_month_runs_from_local_midnight_to_local_midnight(name, zone, start, end):
    period = month(name, zone)
    assert (period.start, period.end) == (start, end)
    assert not period.is_over(end - timedelta(microseconds=1))
    assert period.is_over(end)


@given(moments, zones)
def test_each_moment_is_in_one_month(moment, zone):
    period = month_of(moment, zone)
    assert period.start <= moment < period.end
    before = month_before(moment, zone)
    assert before.end == period.start
    assert month_of(period.end, zone).start == period.end


@pytest.mark.parametrize(
    "name", ["", "2026", "2026-13", "2026-00", "2026-1", "26-01", "2026-01-01", "٢٠٢٦-٠١", "9999-12"]
)
def test_what_is_no_month_is_refused(name):
    with pytest.raises(InvalidPeriod, match="YYYY-MM"):
        month(name, "UTC")
