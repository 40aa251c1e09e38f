"""Mail with an invoice attached, to the address and in the language that the invoice has.

The texts are gettext's (`billing/locale`), dates and money `wording.py`'s.
"""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.utils import translation

from billing.invoices.models import Invoice
from billing.invoices.pdf import render
from billing.invoices.wording import Wording


def send(name: str, invoice: Invoice, context: dict[str, Any]) -> None:
    """The texts of `emails/<name>/`, with the paper and what every letter says; as HTML the same paragraphs."""
    wording, zone = Wording(invoice.language), ZoneInfo(invoice.time_zone)
    common = {
        "invoice": invoice,
        "due": wording.day(invoice.due_at, zone),
        "issuer": invoice.issuer.splitlines()[0] if invoice.issuer else "",
    }
    with translation.override(wording.language):
        subject = " ".join(render_to_string(f"emails/{name}/subject.txt", common | context).split())
        body = render_to_string(f"emails/{name}/body.txt", common | context).strip()
        letter = {"subject": subject, "paragraphs": [part.strip() for part in body.split("\n\n") if part.strip()]}
        html = render_to_string("emails/letter.html", letter)
    message = EmailMultiAlternatives(subject, body, settings.DEFAULT_FROM_EMAIL, [invoice.email])
    message.attach_alternative(html, "text/html")
    message.attach(f"{invoice.number}.pdf", render(invoice), "application/pdf")
    message.send()


def send_invoice(invoice: Invoice) -> None:
    """The invoice itself, where no provider sends it."""
    amount = Wording(invoice.language).minor(invoice.total_minor, invoice.currency)
    send("invoice", invoice, {"amount": amount})
