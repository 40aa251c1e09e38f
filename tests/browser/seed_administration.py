"""What an admin has set up, made through the services: alerts, webhooks with a receiver of their own, keys, exports."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portal.organizations.models import Project
    from tests.factories.portal import Cast

USD = 1_000_000_000
DEADLINE_S = 180
BROWSER = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605.1.15"
)


class _Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what comes, but for what is sent where nobody listens any more."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(410 if self.path.startswith("/old") else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def receiver() -> Iterator[str]:
    """Its address; it listens until the block ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def wait_until(what: str, is_true: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE_S} s"
        time.sleep(0.2)


def administer(cast: Cast, search: Project, *, last_month: str) -> dict[str, object]:
    """Fills the pages of an admin; the rows that paths need. The product's worker delivers, mails and exports."""
    from portal.audit.origin import Origin, acting_from

    with acting_from(Origin("203.0.113.24", BROWSER)), receiver() as address:
        _pay(cast)
        _hand_out_keys(cast)
        exports = _export(cast, last_month)
        delivery_id = _alert(cast, search, address)
        wait_until("An export", lambda: all(_is_over(export) for export in exports))
    return {"delivery_id": delivery_id}


def _pay(cast: Cast) -> None:
    """Whom invoices go to, the taxes of where they are, and a code that is redeemed."""
    from django.utils import timezone

    from portal.billing_pages.services import change_billing_details, redeem_code
    from portal.operator.finance_services import make_promo_code, set_promo_code_active, set_tax_rate

    today = timezone.localdate()
    rates = (("DE", "USt.", "19"), ("FR", "TVA", "20"), ("NL", "BTW", "21"), ("AT", "USt.", "20"))
    for country, name, percent in rates:
        set_tax_rate(
            country=country,
            name=name,
            percent=Decimal(percent),
            effective_from=today.replace(month=1, day=1),
            actor=cast.oda,
        )
    address = {
        "legal_name": "Analytical Engines GmbH",
        "address_line1": "Lovelaceallee 12",
        "postal_code": "10115",
        "city": "Berlin",
        "country": "DE",
    }
    change_billing_details(organization=cast.organization, address=address, actor=cast.ada)
    codes = [
        make_promo_code(
            code=code,
            description=description,
            amount_nano=amount * USD,
            currency="USD",
            max_redemptions=most,
            valid_until=today + timedelta(days=days),
            credit_days=credit_days,
            actor=cast.oda,
        )
        for code, description, amount, most, days, credit_days in (
            ("HACKDAY26", "Community hack day", 10, 200, 60, 90),
            ("WELCOME5", "Welcome", 5, 1000, 365, None),
            ("SUMMER", "Summer school", 25, 40, 30, 30),
        )
    ]
    set_promo_code_active(promo_code=codes[-1], is_active=False, actor=cast.oda)
    redeem_code(organization=cast.organization, text="hackday26", actor=cast.ada)


def _hand_out_keys(cast: Cast) -> None:
    from django.utils import timezone

    from portal.api_keys import management
    from portal.organizations.models import Member
    from portal.organizations.roles import Role

    now = timezone.now()
    makers = {who: Member.objects.get(user=who, organization=cast.organization) for who in (cast.ada, cast.dee)}
    management.issue(maker=makers[cast.ada], name="terraform", role=Role.ADMIN, expires_at=now + timedelta(days=90))
    management.issue(maker=makers[cast.dee], name="cost report", role=Role.VIEWER, networks=["203.0.113.0/24"])
    over = management.issue(maker=makers[cast.dee], name="old deploy bot", role=Role.DEVELOPER)
    management.revoke(key=over.key, actor=cast.ada, reason="Replaced by terraform")


def _export(cast: Cast, last_month: str) -> list[int]:
    from portal.billing_pages.services import request_export

    wanted: dict[str, Any] = {"project_id": None, "api_key_id": None, "model": "", "end_user": "", "actor": cast.ada}
    return [
        request_export(
            organization=cast.organization,
            kind=kind,
            file_format=file_format,
            period=last_month,
            group_by=group_by,
            **wanted,
        ).id
        for kind, file_format, group_by in (
            ("usage", "csv", ""),
            ("focus", "parquet", ""),
            ("showback", "csv", "project"),
            ("chargeback", "csv", "project"),
        )
    ]


def _is_over(export_id: int) -> bool:
    from billing.exports.models import Export

    return Export.objects.get(id=export_id).is_over


def _alert(cast: Cast, search: Project, address: str) -> int:
    """Rules, two receivers, and what the rules find now; the id of a delivery that arrived."""
    from django.utils import timezone

    from portal.alerts import webhooks
    from portal.alerts.evaluation import evaluate_all
    from portal.alerts.kinds import DeliveryState, RuleKind
    from portal.alerts.models import Alert, WebhookDelivery
    from portal.alerts.services import create_rule

    organization, ada = cast.organization, cast.ada
    on_call = webhooks.add(
        organization=organization, url=f"{address}/hooks/tokens", description="On-call bot", actor=ada
    ).endpoint
    webhooks.add(organization=organization, url=f"{address}/old/chat", description="Old chat room", actor=cast.dee)
    for kind, fields in (
        (RuleKind.BUDGET, {"window": "month", "amount_nano": 2 * USD, "thresholds": [10, 50, 80, 100]}),
        (RuleKind.BUDGET, {"window": "week", "amount_nano": USD // 4, "thresholds": [80, 100], "project": search}),
        (RuleKind.CREDIT, {"amount_nano": 20 * USD}),
        (RuleKind.SPEND_ANOMALY, {"amount_nano": 5 * USD, "thresholds": [300]}),
        (RuleKind.FAILURES, {"thresholds": [20]}),
    ):
        create_rule(organization=organization, kind=kind, actor=ada, **fields)  # type: ignore[arg-type]
    assert evaluate_all(now=timezone.now()) >= 1
    webhooks.send_test(endpoint=on_call, actor=ada)
    sent = WebhookDelivery.objects.filter(organization=organization)
    wait_until("A delivery", lambda: not sent.filter(state=DeliveryState.PENDING).exists())
    wait_until("A mail", lambda: not Alert.objects.filter(organization=organization, mailed_at=None).exists())
    return sent.filter(endpoint=on_call, event_type__startswith="alert.").latest("id").id
