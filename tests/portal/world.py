"""One organization with a row of every kind, and a person of every role: what the walk over all addresses needs."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from billing.credits.models import PromoCode, TopUp
from billing.exports.services import make, request_export
from billing.fees.models import RecurringFee
from billing.invoices.models import CreditNote, Invoice
from billing.invoices.services import draft_invoice
from billing.payments.models import PaymentEvent
from billing.pricing.models import Discount
from portal.alerts import webhooks
from portal.alerts.kinds import RuleKind
from portal.alerts.services import create_rule
from portal.api_keys import management, operator_keys
from portal.api_keys.models import OperatorKey, RetiredSecret
from portal.api_keys.services import issue, rotate
from portal.catalog.models import Deployment
from portal.limit_templates import services as limit_templates
from portal.limit_templates.content import Content
from portal.limit_templates.models import TemplateRun
from portal.operator.models import InvoiceRun
from portal.organizations.invitations import invite
from portal.organizations.models import Member, Organization
from portal.organizations.roles import Role
from portal.playground.services import share
from portal.quotas.models import Quota, QuotaKind, Window
from portal.quotas.services import change_quota
from portal.users.models import User
from tests.factories.portal import make_cast, make_model, make_user, set_up_second_factor
from tests.factories.usage import use


@dataclass
class World:
    organization: Organization
    elsewhere: Organization
    people: dict[str, User]
    arguments: dict[str, Any]
    secrets: dict[str, str] = field(default_factory=dict)
    browsers: dict[str, Client] = field(default_factory=dict)

    def browser(self, who: str) -> Client:
        """Signed in once, and used again."""
        if who not in self.browsers:
            self.browsers[who] = Client()
            if who in self.people:
                self.browsers[who].force_login(self.people[who], backend="django.contrib.auth.backends.ModelBackend")
        return self.browsers[who]

    def program(self, role: str) -> Client:
        """A client with a management key of this role, or with an operator key: "operator", or "reader"."""
        return Client(headers={"authorization": f"Bearer {self.secrets[role]}"})


def make_world(monkeypatch: Any) -> World:
    # No name server is asked; deliveries are made here, and not one is sent.
    monkeypatch.setattr("portal.alerts.webhooks.resolve", lambda *_, **__: [])
    cast = make_cast()
    model = make_model()
    organization = cast.organization
    people = {"owner": cast.ada, "admin": cast.dee, "developer": cast.ben, "outsider": cast.cyd, "operator": cast.oda}
    for role, name in ((Role.BILLING, "Bo"), (Role.VIEWER, "Vi")):
        people[role.value] = make_user(name)
        Member.objects.create(user=people[role.value], organization=organization, role=role)
    # Someone to act on, so that nobody acts on themselves.
    fay = Member.objects.create(user=make_user("Fay"), organization=organization, role=Role.VIEWER)
    key = issue(project=cast.project, name="laptop", actor=cast.ada).api_key
    rotate(api_key=key, overlap=timedelta(hours=1), actor=cast.ada)
    owner = Member.objects.get(user=cast.ada, organization=organization)
    set_up_second_factor(cast.oda)
    soon = timezone.now() + timedelta(days=1)
    secrets = {
        name: operator_keys.issue(maker=cast.oda, name=name, may_change=may_change, expires_at=soon).secret
        for name, may_change in (("operator", True), ("reader", False))
    }
    # An operator may be a member, too; the management key that they make as one opens nothing of the operator's.
    elsewhere = Member.objects.get(user=cast.cyd).organization
    oda = Member.objects.create(user=cast.oda, organization=elsewhere, role=Role.ADMIN)
    secrets["operator as a member"] = management.issue(maker=oda, name="member", role=Role.ADMIN).secret
    for role in Role:
        issued = management.issue(maker=owner, name=role.value, role=role)
        secrets[role.value] = issued.secret
    spare = management.issue(maker=owner, name="spare", role=Role.VIEWER).key
    change_quota(organization=organization, kind=QuotaKind.REQUESTS, window=Window.DAY, limit=5, actor=cast.ada)
    quota = Quota.objects.get(organization=organization)
    endpoint = webhooks.add(
        organization=organization, url="https://example.com/hook", description="", actor=cast.ada
    ).endpoint
    arguments = {
        "slug": organization.slug,
        "project_slug": cast.project.slug,
        "api_key_id": key.id,
        "retired_id": RetiredSecret.objects.get(api_key=key).id,
        "key_id": spare.id,
        "operator_key_id": OperatorKey.objects.get(name="reader").id,
        "run_id": InvoiceRun.objects.create(period="2020-01", is_preview=True, started_by=cast.oda).id,
        "request_id": use(key, model.name, started_at=timezone.now()),
        "invoice_id": draft_invoice(organization_id=organization.id, period=f"{timezone.now():%Y-%m}").id,
        "quota_id": quota.id,
        "limit_id": quota.id,
        "member_id": fay.id,
        "invitation_id": invite(
            organization=organization, email="eve@example.com", role=Role.DEVELOPER, actor=cast.ada
        ).id,
        "rule_id": create_rule(organization=organization, kind=RuleKind.FAILURES, thresholds=[20], actor=cast.ada).id,
        "webhook_id": endpoint.id,
        "share_id": share(organization=organization, body=b'{"model": "m"}', actor=cast.ben).id,
        "delivery_id": webhooks.send_test(endpoint=endpoint, actor=cast.ada).id,
        "model_id": model.id,
        "model_name": model.name,
        "deployment_id": Deployment.objects.get(model=model).id,
        **make_money(organization),
        **make_template_run(cast.oda),
    }
    world = World(organization, elsewhere, people, arguments, secrets)
    # Before any test, since what a test does is rolled back.
    for who in (*people, "nobody"):
        world.browser(who)
    return world


def make_money(organization: Organization) -> dict[str, int]:
    """A row of each kind that money has, and a finished file."""
    now = timezone.now()
    issued = Invoice.objects.create(
        organization=organization,
        status="final",
        number="W-1",
        period="2020-01",
        period_start=now - timedelta(days=2),
        period_end=now - timedelta(days=1),
        time_zone="UTC",
        currency="USD",
        drafted_at=now,
        finalized_at=now,
        due_at=now,
    )
    note = CreditNote.objects.create(
        invoice=issued,
        number="WCN-1",
        key="w",
        effect="reduces",
        amount_minor=1,
        tax_minor=0,
        reason="w",
        issued_at=now,
    )
    export = request_export(
        organization_id=organization.id, kind="usage", file_format="csv", period=f"{now:%Y-%m}", actor_id=None
    )
    make(export.id)
    fee = RecurringFee.objects.create(
        organization=organization, name="Seats", unit_amount_minor=1, currency="USD", starts_on=now.date()
    )
    top_up = TopUp.objects.create(
        organization=organization, kind="checkout", key="w", currency="USD", amount_minor=500, tax_minor=0
    )
    code = PromoCode.objects.create(
        code="WORLD-1", description="w", amount_nano=1, currency="USD", max_redemptions=1, valid_from=now
    )
    event = PaymentEvent.objects.create(
        provider="stripe", event_id="evt_w", type="invoice.paid", payload={}, outcome="unmatched"
    )
    discount = Discount.objects.create(
        organization=organization, key="w", basis_points=1, effective_from=now, reason="w"
    )
    return {
        "credit_note_id": note.id,
        "discount_id": discount.id,
        "export_id": export.id,
        "fee_id": fee.id,
        "top_up_id": top_up.id,
        "promo_code_id": code.id,
        "event_id": event.id,
    }


def make_template_run(operator: User) -> dict[str, int]:
    template = limit_templates.make_template(name="Trial", content=Content({}), actor=operator)
    run = TemplateRun.objects.create(version=template.versions.get(), reason="w", started_by=operator)
    return {"template_id": template.id, "template_run_id": run.id}


def unknown(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, of rows that are not there."""
    return {
        name: uuid.uuid4() if name == "request_id" else value if isinstance(value, str) else 10**9
        for name, value in arguments.items()
    }
