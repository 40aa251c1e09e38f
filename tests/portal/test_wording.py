"""What was written down as codes and figures is told in the reader's language: alerts, the audit log, deliveries."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core import mail
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils import timezone, translation

from portal.alerts import services
from portal.alerts.evaluation import evaluate_all
from portal.alerts.kinds import RuleKind
from portal.alerts.models import Alert, WebhookDelivery
from portal.alerts.wording import failure_of, title_of
from portal.amounts import plain_number, read_nano, typed_amount
from portal.audit.models import AuditEvent
from portal.audit.selectors import SERVICE_SUBJECTS
from portal.audit.services import record_event
from portal.audit.wording import ACTIONS, FIELDS, describe
from portal.quotas.models import Mode, QuotaKind, Window
from portal.quotas.services import change_quota
from tests.factories.portal import Cast

USD = 1_000_000_000
ROOT = Path(settings.BASE_DIR)


def records() -> Iterator[tuple[list[ast.expr], list[ast.expr]]]:
    """Of each event that code writes: what names its act, and the fields before and after."""
    for path in [*(ROOT / "portal").rglob("*.py"), *(ROOT / "api").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "action":
                yield [node.value], []
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("record_event", "_record"):
                named = {word.arg: word.value for word in node.keywords}
                changes = [named[side] for side in ("before", "after") if side in named]
                keys = [key for each in changes if isinstance(each, ast.Dict) for key in each.keys if key]
                yield [*node.args, *([named["action"]] if "action" in named else [])], keys


def constants(nodes: list[ast.expr]) -> set[str]:
    found = (each for node in nodes for each in ast.walk(node))
    return {each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_every_act_that_is_recorded_has_words() -> None:
    """An act or a field without words would be shown as its code, in English, on every page."""
    actions: set[str] = set()
    fields: set[str] = set()
    for acts, keys in records():
        actions |= {text for text in constants(acts) if text.count(".") == 1 and " " not in text}
        fields |= {field.removesuffix("_nano").removesuffix("_minor") for field in constants(keys)}
    assert len(actions) > 60
    assert sorted(actions - set(ACTIONS)) == []
    assert len(fields) > 40
    assert sorted(fields - set(FIELDS)) == []


def test_every_act_can_be_chosen_by_what_it_is_about() -> None:
    assert sorted({action.partition(".")[0] for action in ACTIONS} - set(SERVICE_SUBJECTS)) == []


class TestAuditLog:
    def test_a_limit_is_told_in_the_language_of_its_reader(self, cast: Cast) -> None:
        with translation.override("de"):
            change_quota(
                organization=cast.organization,
                kind=QuotaKind.SPEND,
                window=Window.MONTH,
                limit=1250 * USD,
                actor=cast.dee,
                project=cast.project,
                mode=Mode.SOFT,
            )
        event = AuditEvent.objects.get(action="quota.changed")
        told = describe(event, "EUR")
        assert f"{told.verb} {told.subject}" == "set the limit Spend per month of Default"
        assert {change.field: change.after for change in told.changes} == {
            "Limit": "€1,250.00",
            "Mode": "Let it through and alert",
        }
        with translation.override("de"):
            told = describe(event, "EUR")
            assert f"{told.verb} {told.subject}" == "setzte das Limit Ausgaben je Monat von Default"
            assert "1.250,00\N{NO-BREAK SPACE}€" in [change.after for change in told.changes]

    def test_moments_roles_and_the_services_own_reasons_are_the_readers(self, cast: Cast) -> None:
        record_event(
            organization_id=cast.organization.id,
            actor=None,
            action="management_key.revoked",
            subject=cast.organization,
            before={"role": "admin", "expires_at": "2026-03-01 12:30 UTC", "networks": "all"},
            after={"role": "viewer", "expires_at": None, "networks": "10.0.0.0/8"},
            reason="The organization was deleted",
        )
        with translation.override("de"), timezone.override("Europe/Berlin"):
            told = describe(AuditEvent.objects.latest("id"))
        assert told.actor == "Der Dienst"
        assert told.reason == "Die Organisation wurde gelöscht"
        changes = {change.field: (change.before, change.after) for change in told.changes}
        assert changes["Rolle"] == ("Admin", "Betrachter")
        assert changes["Netze"] == ("alle", "10.0.0.0/8")
        assert "13:30" in str(changes["Läuft ab"][0])
        assert changes["Läuft ab"][1] is None

    def test_the_page_has_no_codes(self, cast: Cast, signed_in: Any) -> None:
        services.create_rule(organization=cast.organization, kind=RuleKind.CREDIT, actor=cast.ada, amount_nano=5 * USD)
        page = signed_in(cast.ada).get(
            reverse("portal:audit", args=[cast.organization.slug]), headers={"accept-language": "de"}
        )
        text = page.content.decode()
        assert "setzte den Alarm Knappes Guthaben" in text
        assert "alert_rule" not in text.partition("<table")[2]


class TestAlerts:
    def test_a_mail_and_the_page_are_in_the_readers_language_and_programs_read_english(
        self, cast: Cast, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("portal.tasks.send_alert_mail.delay", lambda alert_id: None)
        cast.dee.language = "de"
        cast.dee.save(update_fields=["language"])
        services.create_rule(
            organization=cast.organization, kind=RuleKind.CREDIT, actor=cast.ada, amount_nano=100 * USD
        )
        with translation.override("de"):
            assert evaluate_all(now=timezone.now()) == 1
        alert = Alert.objects.get()
        assert alert.title == "$5.00 of credit is left, below $100.00"
        services.send_mail(alert.id)
        english, german = mail.outbox
        assert english.subject == f"{cast.organization.name}: {alert.title}"
        assert german.subject.endswith("Noch 5,00\N{NO-BREAK SPACE}$ Guthaben, weniger als 100,00\N{NO-BREAK SPACE}$")
        assert "Alarme" in str(german.body)
        with translation.override("de"):
            assert title_of(alert) == german.subject.partition(": ")[2]

    def test_an_alert_of_before_is_told_as_it_was(self, cast: Cast) -> None:
        rule = services.create_rule(organization=cast.organization, kind=RuleKind.SOFT_LIMIT, actor=cast.ada)
        alert = Alert(rule=rule, title="A soft limit is passed: 60 requests per minute", facts={"limit_id": 1})
        with translation.override("de"):
            assert title_of(alert) == alert.title

    @pytest.mark.parametrize(
        ("status", "error", "told"),
        [
            (None, "", ""),
            (500, "Answered 500.", "Antwort 500."),
            (None, "No connection: Connection refused", "Keine Verbindung: Connection refused"),
            (None, "The webhook was switched off.", "Der Webhook war ausgeschaltet."),
            (None, "Something else", "Something else"),
        ],
    )
    def test_why_a_delivery_failed(self, status: int | None, error: str, told: str) -> None:
        with translation.override("de"):
            assert failure_of(WebhookDelivery(last_status=status, last_error=error)) == told


class TestAmounts:
    @pytest.mark.parametrize(
        ("typed", "english", "german"),
        [
            ("25.50", "25.50", "25.50"),
            ("25,50", "25.50", "25.50"),
            ("1,250", "1250", "1.250"),
            ("1.250", "1.250", "1250"),
            ("1.250,50 €", "1250.50", "1250.50"),
            ("$1,250.50", "1250.50", "1250.50"),
            ("1,000,000", "1000000", "1000000"),
            ("1.000.000", "1000000", "1000000"),
            ("0,125", "0.125", "0.125"),
            ("0.125", "0.125", "0.125"),
            ("1 250", "1250", "1250"),
            ("1,25,0", "1,25,0", "1,25,0"),
            ("many", "many", "many"),
        ],
    )
    def test_a_sign_means_what_the_reader_means(self, typed: str, english: str, german: str) -> None:
        assert plain_number(typed) == english
        with translation.override("de"):
            assert plain_number(typed) == german

    def test_what_is_printed_is_read_as_the_same(self) -> None:
        for language in ("en", "de"):
            with translation.override(language):
                for amount in (0, 1_125_000_000, 1_250 * USD, 125_000_000):
                    assert read_nano(typed_amount(amount)) == amount

    @pytest.mark.parametrize(("typed", "why"), [("many", "not an amount"), ("1.0000000001", "9 decimals")])
    def test_what_is_no_amount_is_refused_in_words(self, typed: str, why: str) -> None:
        with pytest.raises(ValidationError, match=why):
            read_nano(typed)


def test_days_are_told_as_days(cast: Cast) -> None:
    record_event(
        organization_id=cast.organization.id,
        actor=cast.oda,
        action="fee.ended",
        subject=cast.organization,
        after={"ends_on": "2026-03-01", "until": datetime(2026, 3, 1, 12, tzinfo=UTC).isoformat()},
    )
    with translation.override("de"), timezone.override("UTC"):
        changes = {each.field: str(each.after) for each in describe(AuditEvent.objects.latest("id")).changes}
    assert changes["Endet"] == "1. Mär 2026"
    assert "12:00" in changes["Bis"]
