"""People, organizations, projects, keys, and their accounts with credit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate

from django.apps import apps

from portal.operations.seeding.catalog import make_catalog
from portal.operations.seeding.copying import copy_rows, ids_of, next_id
from portal.operations.seeding.plan import GRANT_NANO, KEYS_PER_MEMBER, KEYS_PER_PROJECT, Made, Say, Size, slug_of


def make_tenants(size: Size, say: Say) -> Made:
    count = size.organizations
    keys = _shares(count, size.keys)
    organizations = ids_of("portal.Organization", count)
    joined = [size.start - timedelta(days=300) + timedelta(seconds=37 * number) for number in range(count)]
    copy_rows(
        "portal.Organization",
        ("id", "name", "slug", "created_at"),
        ((organizations[n], f"Seeded organization {n + 1:05d}", slug_of(n), joined[n]) for n in range(count)),
    )
    owners = _make_members(organizations, [number // KEYS_PER_MEMBER for number in keys], joined)
    project_offsets, first_project = _make_projects(organizations, keys, joined)
    say(f"{count:,} organizations with {project_offsets[-1]:,} projects")
    key_offsets, first_key = [0, *accumulate(keys)], next_id("portal.ApiKey", size.keys)
    copy_rows(
        "portal.ApiKey",
        ("id", "project_id", "organization_id", "name", "prefix", "digest", "created_by_id", "created_at"),
        (
            (
                first_key + key,
                first_project
                + project_offsets[n]
                + (key - key_offsets[n]) % (project_offsets[n + 1] - project_offsets[n]),
                organizations[n],
                f"key {key + 1}",
                f"sk-tf-seed{key % 10_000:04d}",
                hashlib.sha256(f"seeded key {key}".encode()).hexdigest(),
                owners[n],
                joined[n] + timedelta(minutes=key % 400_000),
            )
            for n in range(count)
            for key in range(key_offsets[n], key_offsets[n + 1])
        ),
    )
    say(f"{size.keys:,} API keys, {keys[0]:,} of them of the largest organization")
    credit, revenue, grants = _make_accounts(organizations, size.start)
    prices, deployments = make_catalog(size.start)
    return Made(
        organization_ids=organizations,
        owner_ids=owners,
        key_offsets=key_offsets,
        first_key_id=first_key,
        project_offsets=project_offsets,
        first_project_id=first_project,
        credit_account_ids=credit,
        revenue_account_id=revenue,
        grant_ids=grants,
        prices=prices,
        deployment_ids=deployments,
    )


def _shares(organizations: int, keys: int) -> list[int]:
    """Keys of each organization: shares of 1/rank, one each at least."""
    harmonic = sum(1 / (rank + 1) for rank in range(organizations))
    spare = keys - organizations
    sizes = [1 + int(spare / ((rank + 1) * harmonic)) for rank in range(organizations)]
    sizes[0] += keys - sum(sizes)
    return sizes


def _make_members(organizations: range, more: Sequence[int], joined: Sequence[datetime]) -> range:
    """The owners, and `more` others in each organization. Returns the owners' ids."""
    owners = ids_of("portal.User", len(organizations))
    developers = iter(ids_of("portal.User", sum(more)))
    people = [
        (owners[n], f"{slug_of(n)}@example.com", f"Owner {n + 1}", "owner", organizations[n], joined[n])
        for n in range(len(organizations))
    ]
    people += [
        (
            next(developers),
            f"{slug_of(n)}-{number + 1}@example.com",
            f"Developer {number + 1}",
            "developer",
            organizations[n],
            joined[n] + timedelta(hours=number),
        )
        for n, count in enumerate(more)
        for number in range(count)
    ]
    copy_rows(
        "portal.User",
        ("id", "email", "name", "password", "date_joined"),
        ((user, email, name, "!", at) for user, email, name, _, _, at in people),
    )
    copy_rows(
        "portal.Member",
        ("user_id", "organization_id", "role", "joined_at"),
        ((user, organization, role, at) for user, _, _, role, organization, at in people),
    )
    return owners


def _make_projects(organizations: range, keys: Sequence[int], joined: Sequence[datetime]) -> tuple[list[int], int]:
    """The offset of each organization's first project, and one more; the first project's id."""
    counts = [1 + number // KEYS_PER_PROJECT for number in keys]
    offsets, first = [0, *accumulate(counts)], next_id("portal.Project", sum(counts))
    copy_rows(
        "portal.Project",
        ("id", "organization_id", "name", "slug", "is_default", "created_at"),
        (
            (
                first + offsets[n] + number,
                organizations[n],
                f"Project {number + 1}" if number else "Default",
                f"project-{number + 1}" if number else "default",
                number == 0,
                joined[n],
            )
            for n, count in enumerate(counts)
            for number in range(count)
        ),
    )
    return offsets, first


def _make_accounts(organizations: range, start: datetime) -> tuple[range, int, range]:
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
