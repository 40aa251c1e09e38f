"""People, organizations, projects, keys, and their accounts with credit."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from itertools import accumulate

from django.apps import apps

from portal.operations.seeding.catalog import make_catalog
from portal.operations.seeding.copying import copy_rows, ids_of, next_id
from portal.operations.seeding.plan import GRANT_NANO, Made, Say, Size, slug_of


def make_tenants(size: Size, say: Say) -> Made:
    count = size.organizations
    start = size.end - timedelta(days=size.days)
    organizations, users, projects = (ids_of(f"portal.{name}", count) for name in ("Organization", "User", "Project"))
    joined = [start - timedelta(days=300) + timedelta(seconds=37 * number) for number in range(count)]
    copy_rows(
        "portal.User",
        ("id", "email", "name", "password", "date_joined"),
        ((users[n], f"{slug_of(n)}@example.com", f"Owner {n + 1}", "!", joined[n]) for n in range(count)),
    )
    copy_rows(
        "portal.Organization",
        ("id", "name", "slug", "created_at"),
        ((organizations[n], f"Seeded organization {n + 1:05d}", slug_of(n), joined[n]) for n in range(count)),
    )
    copy_rows(
        "portal.Member",
        ("user_id", "organization_id", "role", "joined_at"),
        ((users[n], organizations[n], "owner", joined[n]) for n in range(count)),
    )
    copy_rows(
        "portal.Project",
        ("id", "organization_id", "name", "slug", "is_default", "created_at"),
        ((projects[n], organizations[n], "Default", "default", True, joined[n]) for n in range(count)),
    )
    say(f"{count:,} organizations")
    offsets = _key_offsets(count, size.keys)
    first_key = next_id("portal.ApiKey", size.keys)
    owners = ((n, key) for n in range(count) for key in range(offsets[n], offsets[n + 1]))
    copy_rows(
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
    credit, revenue, grants = make_accounts(organizations, users, start)
    prices, deployments = make_catalog(start)
    return Made(organizations, projects, first_key, offsets, prices, deployments, credit, revenue, grants)


def _key_offsets(organizations: int, keys: int) -> list[int]:
    """Shares of 1/rank, one key each at least."""
    harmonic = sum(1 / (rank + 1) for rank in range(organizations))
    spare = keys - organizations
    sizes = [1 + int(spare / ((rank + 1) * harmonic)) for rank in range(organizations)]
    sizes[0] += keys - sum(sizes)
    return [0, *accumulate(sizes)]


def make_accounts(organizations: range, users: range, start: datetime) -> tuple[range, int, range]:
    count = len(organizations)
    copy_rows(
        "billing.BillingAccount",
        ("organization_id", "email", "created_at"),
        ((organizations[n], f"{slug_of(n)}@example.com", start) for n in range(count)),
    )
    copy_rows(
        "billing.OrganizationBalance",
        ("organization_id", "credit_nano", "receivable_nano"),
        ((organization, 0, 0) for organization in organizations),
    )
    credit, receivable = ids_of("billing.LedgerAccount", count), ids_of("billing.LedgerAccount", count)
    columns = ("id", "kind", "organization_id", "currency")
    copy_rows("billing.LedgerAccount", columns, ((credit[n], "credit", organizations[n], "USD") for n in range(count)))
    copy_rows(
        "billing.LedgerAccount", columns, ((receivable[n], "receivable", organizations[n], "USD") for n in range(count))
    )
    house = {kind: _house_account(kind) for kind in ("revenue", "cash")}
    grants, payments = ids_of("billing.CreditGrant", count), ids_of("billing.LedgerTransaction", count)
    copy_rows(
        "billing.CreditGrant",
        ("id", "organization_id", "kind", "key", "amount_nano", "currency", "reason", "created_at"),
        (
            (grants[n], organizations[n], "purchase", f"seed:{organizations[n]}", GRANT_NANO, "USD", "Seeded", start)
            for n in range(count)
        ),
    )
    copy_rows("billing.GrantBalance", ("grant_id", "remaining_nano"), ((grant, 0) for grant in grants))
    copy_rows(
        "billing.LedgerTransaction",
        ("id", "kind", "key", "reason", "created_at"),
        ((payments[n], "grant", f"grant:seed:{organizations[n]}", "Seeded", start) for n in range(count)),
    )
    entry = ("transaction_id", "account_id", "grant_id", "amount_nano")
    copy_rows("billing.LedgerEntry", entry, ((payments[n], credit[n], grants[n], GRANT_NANO) for n in range(count)))
    copy_rows("billing.LedgerEntry", entry, ((payment, house["cash"], None, -GRANT_NANO) for payment in payments))
    return credit, house["revenue"], grants


def _house_account(kind: str) -> int:
    account, _ = apps.get_model("billing", "LedgerAccount").objects.get_or_create(
        kind=kind, organization=None, currency="USD"
    )
    return int(account.id)
