"""Rows that operators ask for by address; 404 where there is none. The caller has checked that an operator asks."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from django.http import Http404
from django.utils import timezone

from billing.credits import selectors as credits_
from billing.credits.models import PromoCode, TopUp
from billing.fees import selectors as fees
from billing.invoices import selectors as invoices
from billing.invoices.models import CreditNote, Invoice
from billing.payments.models import PaymentEvent
from billing.pricing import selectors as pricing
from billing.pricing.models import Discount
from portal.api_keys.models import OperatorKey
from portal.catalog.models import Deployment, Model
from portal.limit_templates import selectors as limit_templates
from portal.limit_templates.models import LimitTemplate, TemplateRun, TemplateVersion
from portal.operator import selectors
from portal.operator.models import InvoiceRun
from portal.operator.selectors import MismatchRow
from portal.organizations.models import Organization
from portal.organizations.selectors import organization_by_slug

Row = TypeVar("Row")


def _found(row: Row | None, name: str) -> Row:
    if row is None:
        raise Http404(f"No such {name}.")
    return row


def organization(slug: str) -> Organization:
    return _found(organization_by_slug(slug), "organization")


def model(model_id: int) -> Model:
    return _found(Model.objects.filter(id=model_id).first(), "model")


def new_deployment(of: Model) -> Deployment:
    """Not saved yet."""
    return Deployment(model=of)


def deployment(deployment_id: int) -> Deployment:
    return _found(Deployment.objects.filter(id=deployment_id).select_related("model").first(), "deployment")


def discount(discount_id: int) -> Discount:
    return _found(pricing.find_discount(discount_id), "discount")


def limit_template(template_id: int) -> LimitTemplate:
    return _found(limit_templates.find_template(template_id), "limit template")


def template_version(of: LimitTemplate, version_id: int) -> TemplateVersion:
    return _found(of.versions.filter(id=version_id).select_related("template").first(), "version")


def template_run(run_id: int) -> TemplateRun:
    return _found(limit_templates.find_run(run_id), "run")


def invoice(invoice_id: int) -> Invoice:
    return _found(invoices.find_invoice(invoice_id), "invoice")


def invoice_run(run_id: int) -> InvoiceRun:
    return _found(InvoiceRun.objects.filter(id=run_id).select_related("started_by").first(), "run")


def compared_call(request_id: UUID) -> MismatchRow:
    return _found(selectors.compared_call(request_id, timezone.now()), "call")


def credit_note(credit_note_id: int) -> CreditNote:
    return _found(invoices.find_credit_note(credit_note_id), "credit note")


def top_up(tenant: Organization, top_up_id: int) -> TopUp:
    row = credits_.find_top_up(top_up_id)
    return _found(row if row is not None and row.organization_id == tenant.id else None, "purchase")


def fee_id(tenant: Organization, wanted: int) -> int:
    return _found(wanted if wanted in {fee.id for fee in fees.fees_of(tenant.id)} else None, "fee")


def promo_code(promo_code_id: int) -> PromoCode:
    return _found(PromoCode.objects.filter(id=promo_code_id).first(), "code")


def payment_event(event_id: int) -> PaymentEvent:
    return _found(PaymentEvent.objects.filter(id=event_id).first(), "event")


def operator_key(key_id: int) -> OperatorKey:
    return _found(OperatorKey.objects.filter(id=key_id).first(), "operator key")
