"""Fills a running product through its services, for screenshots and browser tests.

`python -m tests.browser.seed`, with the product's environment, prints what the paths of tests/browser/pages.py need, as
JSON. It is a process of its own: the tests' own Django has another database.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from config.local.state import RunFolder
from tests.browser.seed_administration import administer, wait_until
from tests.browser.seed_operations import operate
from tests.end_to_end.stack import ROOT, START_TIMEOUT_S, Stack

# The receivers of its webhooks are on this machine.
ENVIRONMENT = {"WEBHOOK_ALLOW_PRIVATE": "1"}


def seeded_by(stack: Stack) -> dict[str, object]:
    """Run this module against the stack; the rows that paths need."""
    environment = RunFolder(stack.var_dir).read_environment()
    assert environment is not None
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.browser.seed"],
        cwd=ROOT,
        env=stack.environment | environment | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=START_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stderr
    rows: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return rows


def seed() -> dict[str, object]:
    from datetime import timedelta

    import openai
    from django.conf import settings
    from django.utils import timezone

    from billing.invoices.models import Invoice
    from billing.pricing.services import set_price
    from portal.api_keys.services import issue
    from portal.catalog.models import Model
    from portal.operator.models import InvoiceRun
    from portal.operator.services import start_run
    from portal.organizations.invitations import invite
    from portal.organizations.models import Organization
    from portal.organizations.roles import Role
    from portal.organizations.services import create_project
    from portal.quotas.models import QuotaKind, Window
    from portal.quotas.services import change_quota
    from tests.factories.portal import MODEL, make_cast
    from tests.factories.usage import use, use_for_days

    now = timezone.now()
    # The price that a new installation begins with has fallen twice to where it is.
    for days_ago, input_nano, cached_input_nano, output_nano in (
        (75, 600_000_000, 150_000_000, 2_600_000_000),
        (24, 500_000_000, 125_000_000, 2_300_000_000),
    ):
        set_price(
            model=MODEL,
            input_nano=input_nano,
            cached_input_nano=cached_input_nano,
            output_nano=output_nano,
            effective_from=now - timedelta(days=days_ago),
            actor_id=None,
        )
    cast = make_cast()
    search = create_project(organization=cast.organization, name="Search", actor=cast.ada)
    production = issue(project=cast.project, name="production", actor=cast.ada)
    keys = [
        production.api_key,
        issue(project=search, name="evaluation", actor=cast.ben).api_key,
        issue(project=cast.project, name="laptop", actor=cast.ben, expires_at=now + timedelta(days=30)).api_key,
    ]
    use_for_days(keys, MODEL, now=now - timedelta(minutes=3), days=40, calls_per_day=18)
    request_id = use(keys[0], MODEL, started_at=now, prompt_tokens=2412, cached_tokens=1900, completion_tokens=312)
    for kind, window, limit, scope in (
        (QuotaKind.SPEND, Window.MONTH, 2_000_000_000, {}),
        (QuotaKind.TOKENS, Window.DAY, 60_000, {"project": search}),
        (QuotaKind.REQUESTS, Window.MINUTE, 60, {"api_key": keys[2]}),
    ):
        change_quota(
            organization=cast.organization,
            kind=kind,
            window=window,
            limit=limit,
            actor=cast.dee,
            reason="Trial",
            **scope,
        )
    invite(organization=cast.organization, email="eve@example.com", role=Role.DEVELOPER, actor=cast.ada)
    last_month = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"
    run = start_run(period=last_month, is_preview=False, actor=cast.oda)
    # Real calls, so that records and receipts meet; a product that has just started may ask for another try.
    client = openai.OpenAI(base_url=settings.API_BASE_URL, api_key=production.secret, max_retries=5)
    for question in ("What is the capital of France?", "Name three colours."):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=24, temperature=0
        )
    wait_until("The invoice run", lambda: InvoiceRun.objects.filter(id=run.id, state="finished").exists())
    return (
        administer(cast, search, last_month=last_month)
        | operate(cast)
        | {
            "run_id": run.id,
            "slug": cast.organization.slug,
            "new_slug": Organization.objects.get(members__user=cast.cyd).slug,
            "key_id": keys[0].id,
            "request_id": str(request_id),
            "invoice_id": Invoice.objects.get(organization=cast.organization).id,
            "model_id": Model.objects.get(name=MODEL).id,
            "period": last_month,
        }
    )


if __name__ == "__main__":
    assert os.environ["DJANGO_SETTINGS_MODULE"]
    import django

    django.setup()
    print(json.dumps(seed()))
