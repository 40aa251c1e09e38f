"""Fills a database with as much as a large service has, for measuring pages: always the same for the same arguments.

Rows go in by COPY with the triggers off, since one at a time would take days; then the projections are computed from
what was written, so that the books of a seeded database balance (`rebuild_balances --compare`, `rebuild_rollups
--compare`). An organization's size follows its rank: the first has a tenth of everything, the last almost nothing.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import connection, models, transaction

from billing.ledger import audit
from billing.pricing import selectors as pricing
from billing.pricing.rating import FREE, RatedCost, rate
from billing.pricing.selectors import PriceInfo
from billing.rollups.services import rebuild_day
from portal.operations.gauges import COUNT_BITS, Gauge, slot_of
from portal.operations.services import floor

MODELS = {"seed-27b": (20.0, 9.0), "seed-9b": (9.0, 4.0), "seed-mini": (4.0, 1.6)}  # milliseconds to start, and a token
DEPLOYMENTS_PER_MODEL = 2
GRANT_NANO = 10**15
RECORDS_PER_COPY = 50_000
# Depth of the daily rise and fall of traffic.
DAILY_SWING = 0.6

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Size:
    organizations: int
    keys: int
    records: int
    days: int
    end: datetime


@dataclass(frozen=True, slots=True)
class Made:
    """Ids of what was seeded first: the records refer to it."""

    organization_ids: Sequence[int]
    project_ids: Sequence[int]
    first_key_id: int
    key_offsets: Sequence[int]  # of each organization's first key, and one more
    prices: Sequence[PriceInfo]
    deployment_ids: Sequence[Sequence[int]]
    credit_account_ids: Sequence[int]
    revenue_account_id: int
    grant_ids: Sequence[int]


class AlreadySeeded(Exception):
    pass


def seed(size: Size, *, say: Say) -> None:
    """All of it. Raises AlreadySeeded when the database has a seeded organization."""
    organization = apps.get_model("portal", "Organization")
    if organization.objects.filter(slug=_slug(0)).exists():
        raise AlreadySeeded("This database is seeded already; make a fresh one to seed it again.")
    with transaction.atomic(), _triggers_off():
        made = _tenants(size, say)
        _calls(size, made, say)
        audit.rebuild()
        _samples(size, made, say)
    first_day = size.end - timedelta(days=size.days)
    for number in range(size.days + 1):
        day = first_day + timedelta(days=number)
        say(f"rollups of {day:%Y-%m-%d}: {rebuild_day(day, now=size.end):,} records")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@contextmanager
def _triggers_off() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")


def _slug(number: int) -> str:
    return f"seed-{number + 1:05d}"


# COPY -----------------------------------------------------------------------------------------------


def _copy(label: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Rows of these columns; the others get their field's default. Returns how many."""
    model = apps.get_model(label)
    fields = {field.column: field for field in model._meta.concrete_fields}
    constants = {
        column: field.get_db_prep_save(field.get_default(), connection)
        for column, field in fields.items()
        if column not in names and not _is_filled_by_database(field)
    }
    columns = [*names, *constants]
    tail = tuple(constants.values())
    count = 0
    with connection.cursor() as cursor:
        statement = f"COPY {model._meta.db_table} ({', '.join(columns)}) FROM STDIN"  # names of our own tables
        with cursor.cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row((*row, *tail))
                count += 1
    return count


def _is_filled_by_database(field: models.Field[Any, Any]) -> bool:
    if field.generated or field.has_db_default() or isinstance(field, models.AutoField):
        return True
    return field.null and not field.has_default()


def _next_id(label: str, count: int) -> int:
    """Reserve ids of a table's sequence; the first of them."""
    table = apps.get_model(label)._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [table])
        sequence = cursor.fetchone()[0]
        cursor.execute("SELECT nextval(%s)", [sequence])
        first: int = cursor.fetchone()[0]
        cursor.execute("SELECT setval(%s, %s)", [sequence, first + count])
        return first


def _ids(label: str, count: int) -> range:
    first = _next_id(label, count)
    return range(first, first + count)


# Tenants --------------------------------------------------------------------------------------------


def _tenants(size: Size, say: Say) -> Made:
    count = size.organizations
    start = size.end - timedelta(days=size.days)
    organizations, users, projects = (_ids(f"portal.{name}", count) for name in ("Organization", "User", "Project"))
    joined = [start - timedelta(days=300) + timedelta(seconds=37 * number) for number in range(count)]
    _copy(
        "portal.User",
        ("id", "email", "name", "password", "date_joined"),
        ((users[n], f"{_slug(n)}@example.com", f"Owner {n + 1}", "!", joined[n]) for n in range(count)),
    )
    _copy(
        "portal.Organization",
        ("id", "name", "slug", "created_at"),
        ((organizations[n], f"Seeded organization {n + 1:05d}", _slug(n), joined[n]) for n in range(count)),
    )
    _copy(
        "portal.Member",
        ("user_id", "organization_id", "role", "joined_at"),
        ((users[n], organizations[n], "owner", joined[n]) for n in range(count)),
    )
    _copy(
        "portal.Project",
        ("id", "organization_id", "name", "slug", "is_default", "created_at"),
        ((projects[n], organizations[n], "Default", "default", True, joined[n]) for n in range(count)),
    )
    say(f"{count:,} organizations")
    offsets = _key_offsets(count, size.keys)
    first_key = _next_id("portal.ApiKey", size.keys)
    owners = ((n, key) for n in range(count) for key in range(offsets[n], offsets[n + 1]))
    _copy(
        "portal.ApiKey",
        ("id", "project_id", "organization_id", "name", "prefix", "digest", "created_by_id", "created_at"),
        (
            (
                first_key + key,
                projects[n],
                organizations[n],
                f"key {key + 1}",
                f"sk-tf-seed{key % 10_000:04d}",
                hashlib.sha256(f"seeded key {key}".encode()).hexdigest(),
                users[n],
                joined[n] + timedelta(minutes=key % 400_000),
            )
            for n, key in owners
        ),
    )
    say(f"{size.keys:,} API keys, {offsets[1]:,} of them of the largest organization")
    credit, revenue, grants = _accounts(organizations, users, start)
    prices, deployments = _catalog(start)
    return Made(organizations, projects, first_key, offsets, prices, deployments, credit, revenue, grants)


def _key_offsets(organizations: int, keys: int) -> list[int]:
    """Shares of 1/rank, one key each at least."""
    harmonic = sum(1 / (rank + 1) for rank in range(organizations))
    spare = keys - organizations
    sizes = [1 + int(spare / ((rank + 1) * harmonic)) for rank in range(organizations)]
    sizes[0] += keys - sum(sizes)
    return [0, *accumulate(sizes)]


def _accounts(organizations: range, users: range, start: datetime) -> tuple[range, int, range]:
    count = len(organizations)
    _copy(
        "billing.BillingAccount",
        ("organization_id", "email", "created_at"),
        ((organizations[n], f"{_slug(n)}@example.com", start) for n in range(count)),
    )
    _copy(
        "billing.OrganizationBalance",
        ("organization_id", "credit_nano", "receivable_nano"),
        ((organization, 0, 0) for organization in organizations),
    )
    credit, receivable = _ids("billing.LedgerAccount", count), _ids("billing.LedgerAccount", count)
    columns = ("id", "kind", "organization_id", "currency")
    _copy("billing.LedgerAccount", columns, ((credit[n], "credit", organizations[n], "USD") for n in range(count)))
    _copy(
        "billing.LedgerAccount", columns, ((receivable[n], "receivable", organizations[n], "USD") for n in range(count))
    )
    house = {kind: _house_account(kind) for kind in ("revenue", "cash")}
    grants, payments = _ids("billing.CreditGrant", count), _ids("billing.LedgerTransaction", count)
    _copy(
        "billing.CreditGrant",
        ("id", "organization_id", "kind", "key", "amount_nano", "currency", "reason", "created_at"),
        (
            (grants[n], organizations[n], "purchase", f"seed:{organizations[n]}", GRANT_NANO, "USD", "Seeded", start)
            for n in range(count)
        ),
    )
    _copy("billing.GrantBalance", ("grant_id", "remaining_nano"), ((grant, 0) for grant in grants))
    _copy(
        "billing.LedgerTransaction",
        ("id", "kind", "key", "reason", "created_at"),
        ((payments[n], "grant", f"grant:seed:{organizations[n]}", "Seeded", start) for n in range(count)),
    )
    entry = ("transaction_id", "account_id", "grant_id", "amount_nano")
    _copy("billing.LedgerEntry", entry, ((payments[n], credit[n], grants[n], GRANT_NANO) for n in range(count)))
    _copy("billing.LedgerEntry", entry, ((payment, house["cash"], None, -GRANT_NANO) for payment in payments))
    return credit, house["revenue"], grants


def _house_account(kind: str) -> int:
    account, _ = apps.get_model("billing", "LedgerAccount").objects.get_or_create(
        kind=kind, organization=None, currency="USD"
    )
    return int(account.id)


def _catalog(start: datetime) -> tuple[list[PriceInfo], list[range]]:
    """Published models with a price; their deployments are disabled, so that nobody calls them."""
    model_ids = _ids("portal.Model", len(MODELS))
    _copy(
        "portal.Model",
        (
            "id",
            "name",
            "display_name",
            "context_tokens",
            "default_max_output_tokens",
            "max_output_tokens",
            "is_published",
        ),
        ((model_ids[n], name, name.replace("-", " "), 262_144, 4096, 65_536, True) for n, name in enumerate(MODELS)),
    )
    deployments = [_ids("portal.Deployment", DEPLOYMENTS_PER_MODEL) for _ in MODELS]
    _copy(
        "portal.Deployment",
        ("id", "model_id", "address", "is_enabled"),
        (
            (deployment, model_ids[n], f"seed-{deployment}.invalid:50051", False)
            for n, ids in enumerate(deployments)
            for deployment in ids
        ),
    )
    price_ids = _ids("billing.Price", len(MODELS))
    rates = [
        (400_000_000, 100_000_000, 2_030_000_000),
        (150_000_000, 40_000_000, 800_000_000),
        (50_000_000, None, 200_000_000),
    ]
    since = start - timedelta(days=400)
    _copy(
        "billing.Price",
        ("id", "model", "currency", "input_nano", "cached_input_nano", "output_nano", "effective_from"),
        ((price_ids[n], name, "USD", *rates[n], since) for n, name in enumerate(MODELS)),
    )
    prices = [found for price_id in price_ids if (found := pricing.price_by_id(price_id))]
    return prices, deployments


# Calls ----------------------------------------------------------------------------------------------

_RECORD_COLUMNS = (
    "request_id",
    "organization_id",
    "project_id",
    "api_key_id",
    "deployment_id",
    "model",
    "price_id",
    "protocol",
    "is_stream",
    "end_user",
    "gateway_id",
    "expects_receipt",
    "status",
    "hold_nano",
    "started_at",
    "finished_at",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "finish_reason",
    "error_code",
    "ttft_ms",
    "duration_ms",
    *(name.replace("_nano", "_cost_nano") for name in RatedCost._fields),
)


def _calls(size: Size, made: Made, say: Say) -> None:
    chance = random.Random(size.records)
    for first in range(0, size.records, RECORDS_PER_COPY):
        numbers = range(first, min(first + RECORDS_PER_COPY, size.records))
        rows, paid = [], []
        for number in numbers:
            row, rank, cost = _call(number, size, made, chance)
            rows.append(row)
            if cost.total_nano:
                paid.append((row[0], rank, cost.total_nano, row[15]))
        _copy("billing.UsageRecord", _RECORD_COLUMNS, rows)
        transactions = _ids("billing.LedgerTransaction", len(paid))
        _copy(
            "billing.LedgerTransaction",
            ("id", "kind", "key", "created_at"),
            ((transactions[n], "usage", f"usage:{row[0]}", row[3]) for n, row in enumerate(paid)),
        )
        entries = (
            entry
            for transaction_id, (_, rank, nano, _) in zip(transactions, paid, strict=True)
            for entry in (
                (transaction_id, made.credit_account_ids[rank], made.grant_ids[rank], -nano),
                (transaction_id, made.revenue_account_id, None, nano),
            )
        )
        _copy("billing.LedgerEntry", ("transaction_id", "account_id", "grant_id", "amount_nano"), entries)
        say(f"{numbers.stop:,} of {size.records:,} usage records with their ledger transactions")


def _call(number: int, size: Size, made: Made, chance: random.Random) -> tuple[tuple[Any, ...], int, RatedCost]:
    """One record; the rank of its organization; its cost."""
    draw = chance.random
    started_at = size.end - timedelta(days=size.days) * (1 - _progress((number + draw()) / size.records, size.days))
    rank = _rank(draw(), len(made.organization_ids))
    low, high = made.key_offsets[rank], made.key_offsets[rank + 1]
    key = low + min(high - low - 1, _rank(draw(), high - low))
    which = min(len(MODELS) - 1, int(draw() * draw() * len(MODELS) * 1.5))
    price = made.prices[which]
    base_ms, token_ms = MODELS[price.model]
    outcome = draw()
    status = "completed" if outcome < 0.94 else "cancelled" if outcome < 0.98 else "failed"
    prompt = int(math.exp(chance.gauss(6.6, 1.1))) + 1
    cached = int(prompt * draw()) if draw() < 0.35 else 0
    completion = 0 if status == "failed" else int(math.exp(chance.gauss(5.0, 1.0))) + 1
    ttft_ms = None if status == "failed" else base_ms + prompt * 0.02 + math.exp(chance.gauss(3.4, 0.8))
    duration_ms = (ttft_ms or 50.0) + completion * token_ms * math.exp(chance.gauss(0, 0.25))
    cost = FREE if status == "failed" else rate(price, prompt, cached, completion)
    row = (
        _request_id(started_at, chance),
        made.organization_ids[rank],
        made.project_ids[rank],
        made.first_key_id + key,
        made.deployment_ids[which][int(draw() * DEPLOYMENTS_PER_MODEL)],
        price.model,
        price.price_id,
        ("chat", "chat", "responses", "messages")[int(draw() * 4)],
        draw() < 0.8,
        f"user-{int(draw() * 50)}" if draw() < 0.2 else "",
        "seed",
        False,
        status,
        0,
        started_at,
        started_at + timedelta(milliseconds=duration_ms),
        prompt,
        cached,
        completion,
        "stop" if status == "completed" else "",
        ("engine_overloaded", "deadline_exceeded", "device_fault")[int(draw() * 3)] if status == "failed" else "",
        ttft_ms,
        duration_ms,
        *cost,
    )
    return row, rank, cost


def _progress(part: float, days: int) -> float:
    """Time passes faster at night: fewer records there. Rises from 0 to 1."""
    return part + DAILY_SWING * math.sin(2 * math.pi * days * part) / (2 * math.pi * days)


def _rank(part: float, count: int) -> int:
    """0 to count - 1; rank r comes 1/(r + 1) as often as the first."""
    return min(count - 1, int(math.exp(part * math.log(count + 1))) - 1)


def _request_id(at: datetime, chance: random.Random) -> UUID:
    milliseconds = int(at.timestamp() * 1000)
    return UUID(
        int=(milliseconds << 80) | (7 << 76) | (chance.getrandbits(12) << 64) | (2 << 62) | chance.getrandbits(62)
    )


# Samples --------------------------------------------------------------------------------------------

_PER_HOUR = 720  # every five seconds


def _samples(size: Size, made: Made, say: Say) -> None:
    """Minutes of the last two days and hours of the whole period, for each deployment; refusals of the same."""
    chance = random.Random(size.days)
    deployments = [(which, deployment) for which, ids in enumerate(made.deployment_ids) for deployment in ids]
    fine_days = min(2, size.days)
    quarters = [size.end - timedelta(minutes=15 * number) for number in range(fine_days * 24 * 4)]
    minutes = [size.end - timedelta(minutes=number) for number in range(fine_days * 24 * 60)]
    hours = [size.end - timedelta(hours=number) for number in range(size.days * 24)]
    rows = []
    for grain_s, moments, samples in (
        (60, minutes, _PER_HOUR // 60),
        (900, quarters, _PER_HOUR // 4),
        (3600, hours, _PER_HOUR),
    ):
        for at in moments:
            start = floor(at, grain_s)
            for which, deployment in deployments:
                rows.append(_sampled(deployment, which, grain_s, start, samples, chance))
    names = (
        *("deployment_id", "grain_s", "start", "samples", "answered", "active_streams_sum", "running_sum"),
        *("waiting_sum", "prompt_tokens", "prefix_hit_tokens", "completion_tokens", "drafted_tokens"),
        *("accepted_tokens", "busy_s", "histogram"),
    )
    _copy("portal.DeploymentRollup", names, rows)
    codes = ("rate_limit_requests", "rate_limit_tokens", "insufficient_quota", "engine_overloaded", "invalid_api_key")
    _copy(
        "portal.RefusalCount",
        ("grain_s", "start", "code", "organization_id", "gateway_id", "count"),
        (
            (
                grain_s,
                floor(at, grain_s),
                code,
                0,
                "",
                chance.randrange(40),
            )
            for grain_s, moments in ((60, minutes), (3600, hours[48:]))
            for at in moments
            for code in codes
        ),
    )
    say(f"{len(rows):,} rollups of samples")


def _sampled(
    deployment: int, which: int, grain_s: int, start: datetime, samples: int, chance: random.Random
) -> tuple[Any, ...]:
    busy = 0.5 + 0.45 * math.sin(2 * math.pi * (start.hour + start.minute / 60) / 24) * chance.uniform(0.8, 1.1)
    running, waiting = 48 * busy, max(0.0, (busy - 0.7) * 30)
    tokens = int(running * grain_s * 1000 / (MODELS[list(MODELS)[which]][1] * 6))
    slots: dict[int, int] = {}
    for gauge, value in (
        (Gauge.KV_PERCENT, 100 * min(1.0, busy)),
        (Gauge.RUNNING, running),
        (Gauge.WAITING, waiting),
        (Gauge.STREAMS, running),
    ):
        for part, count in ((0.9, samples // 2), (1.0, samples - samples // 2 - 1), (1.1, 1)):
            slot = slot_of(gauge, value * part)
            slots[slot] = slots.get(slot, 0) + count
    return (
        *(deployment, grain_s, start, samples, samples, int(running * samples), int(running * samples)),
        *(int(waiting * samples), tokens * 4, int(tokens * 4 * chance.uniform(0.3, 0.5)), tokens),
        *(tokens, int(tokens * chance.uniform(0.68, 0.78)), float(grain_s)),
        [slot << COUNT_BITS | count for slot, count in sorted(slots.items())],
    )
