"""Alerts: what is found and told once; webhooks: signed, sent, sent again, and never into a private network.

Unusual spend is in test_unusual_spend.py, what webhooks may be sent to in test_webhook_targets.py.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.alerts import delivery as deliveries
from portal.alerts import services, signatures, webhooks
from portal.alerts.evaluation import evaluate_all, window_bounds
from portal.alerts.kinds import BudgetWindow, DeliveryState, RuleKind
from portal.alerts.models import Alert, AlertRule, WebhookDelivery, WebhookEndpoint
from portal.api_keys.models import ApiKey
from portal.api_keys.services import issue
from portal.audit.models import AuditEvent
from portal.catalog.models import Model
from portal.operations.services import Refusals, record_refusals
from portal.sealing import SealBroken, seal, unseal
from tests.factories.portal import Cast
from tests.factories.usage import use

USD = 1_000_000_000
# By the default price list, a call of 1,000,000 tokens in and none out.
CALL = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
CALL_NANO = 400_000_000


@pytest.fixture
def key(cast: Cast, model: Model) -> ApiKey:
    return issue(project=cast.project, name="laptop", actor=cast.ada).api_key


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What would be handed to Celery."""
    tasks: list[tuple[str, int]] = []
    for name in ("deliver_webhook", "send_alert_mail"):
        monkeypatch.setattr(f"portal.tasks.{name}.delay", lambda number, name=name: tasks.append((name, number)))
    return tasks


def rule(cast: Cast, kind: RuleKind = RuleKind.BUDGET, **fields: Any) -> AlertRule:
    if kind == RuleKind.BUDGET:
        fields = {"window": "month", "amount_nano": USD, "thresholds": [50, 80, 100], **fields}
    return services.create_rule(organization=cast.organization, kind=kind, actor=cast.ada, **fields)


class TestBudgets:
    def test_each_threshold_is_told_once_in_its_window(self, cast: Cast, key: ApiKey, model: Model) -> None:
        rule(cast)
        now = timezone.now()
        assert evaluate_all(now=now) == 0
        use(key, model.name, started_at=now, **CALL)
        assert evaluate_all(now=now) == 0
        use(key, model.name, started_at=now, **CALL)
        assert [evaluate_all(now=now) for _ in range(3)] == [1, 0, 0]
        alert = Alert.objects.get()
        assert alert.threshold == 80
        assert alert.title == "80 % of the month's budget of $1.00 is spent (organization)"
        assert alert.facts["spent"] == "0.800000000"
        use(key, model.name, started_at=now, **CALL)
        assert evaluate_all(now=now) == 1
        # 50 was passed unseen with 80, and is not told late.
        assert sorted(Alert.objects.values_list("threshold", flat=True)) == [80, 100]

    def test_next_window_tells_anew(self, cast: Cast, key: ApiKey, model: Model) -> None:
        rule(cast, window="day", thresholds=[10])
        now = timezone.now().replace(hour=12)
        use(key, model.name, started_at=now, price_at=timezone.now(), **CALL)
        tomorrow = now + timedelta(days=1)
        assert evaluate_all(now=now) == 1
        assert evaluate_all(now=tomorrow) == 0
        use(key, model.name, started_at=tomorrow, price_at=timezone.now(), **CALL)
        assert evaluate_all(now=tomorrow) == 1

    @pytest.mark.parametrize("window", BudgetWindow)
    def test_what_was_spent_last_is_told_when_its_window_has_ended(
        self, window: str, cast: Cast, key: ApiKey, model: Model
    ) -> None:
        rule(cast, window=window, thresholds=[40, 100])
        _, end = window_bounds(window, ZoneInfo("UTC"), timezone.now())
        use(key, model.name, started_at=end - timedelta(seconds=1), price_at=timezone.now(), **CALL)
        a_minute_late, an_hour_late = end + timedelta(minutes=1), end + timedelta(hours=1)
        assert [evaluate_all(now=now) for now in (a_minute_late, a_minute_late, an_hour_late)] == [1, 0, 0]
        assert Alert.objects.get().facts["window_end"] == end.isoformat()

    def test_a_window_that_ended_before_the_rule_was_made_is_not_told(
        self, cast: Cast, key: ApiKey, model: Model
    ) -> None:
        made = rule(cast, window="day", thresholds=[10])
        midnight, _ = window_bounds("day", ZoneInfo("UTC"), timezone.now() + timedelta(days=1))
        use(key, model.name, started_at=midnight - timedelta(seconds=1), price_at=timezone.now(), **CALL)
        AlertRule.objects.filter(id=made.id).update(created_at=midnight + timedelta(seconds=10))
        assert evaluate_all(now=midnight + timedelta(seconds=20)) == 0
        AlertRule.objects.filter(id=made.id).update(created_at=midnight - timedelta(seconds=10))
        assert evaluate_all(now=midnight + timedelta(seconds=20)) == 1

    def test_a_scope_counts_its_own_calls(self, cast: Cast, key: ApiKey, model: Model) -> None:
        other = issue(project=cast.project, name="other", actor=cast.ada).api_key
        rule(cast, api_key=other, thresholds=[10])
        now = timezone.now()
        use(key, model.name, started_at=now, **CALL)
        assert evaluate_all(now=now) == 0
        use(other, model.name, started_at=now, **CALL)
        assert evaluate_all(now=now) == 1
        assert "API key other" in Alert.objects.get().title

    @pytest.mark.parametrize(
        ("window", "start"),
        [("day", "2026-03-29T00:00+01:00"), ("week", "2026-03-23T00:00+01:00"), ("month", "2026-03-01T00:00+01:00")],
    )
    def test_windows_are_the_calendars_also_when_clocks_change(self, window: str, start: str) -> None:
        now = datetime(2026, 3, 29, 12, tzinfo=UTC)
        bounds = window_bounds(window, ZoneInfo("Europe/Amsterdam"), now)
        assert bounds[0].isoformat(timespec="minutes") == start
        if window == "day":
            assert (bounds[1].astimezone(UTC) - bounds[0].astimezone(UTC)) == timedelta(hours=23)


def test_low_credit_is_told_once_a_day(cast: Cast) -> None:
    rule(cast, RuleKind.CREDIT, amount_nano=100 * USD)
    now = timezone.now().replace(hour=12)
    assert [evaluate_all(now=now), evaluate_all(now=now), evaluate_all(now=now + timedelta(days=1))] == [1, 0, 1]
    assert Alert.objects.first().title == "$5.00 of credit is left, below $100.00"  # type: ignore[union-attr]


def test_failing_calls_are_told_from_twenty_calls_on(cast: Cast, key: ApiKey, model: Model) -> None:
    rule(cast, RuleKind.FAILURES, thresholds=[20])
    now = timezone.now()
    for number in range(20):
        assert evaluate_all(now=now) == 0
        use(
            key,
            model.name,
            started_at=now - timedelta(minutes=1),
            price_at=now,
            status="failed" if number < 5 else "completed",
        )
    assert evaluate_all(now=now) == 1
    assert Alert.objects.get().title == "5 of 20 calls failed in 15 minutes"


def test_calls_that_no_deployment_takes_are_failing_calls(cast: Cast) -> None:
    rule(cast, RuleKind.FAILURES, thresholds=[20])
    now = timezone.now()
    minute = now.replace(second=0, microsecond=0)
    record_refusals("g", [Refusals(minute, "rate_limit_requests", cast.organization.id, 500)])
    assert evaluate_all(now=now) == 0
    record_refusals("g", [Refusals(minute, "engine_unavailable", cast.organization.id, 30)])
    assert evaluate_all(now=now) == 1
    assert Alert.objects.get().title == "30 of 30 calls failed in 15 minutes"


def test_mail_goes_once_to_those_who_can_act(
    cast: Cast, queued: list[tuple[str, int]], django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    rule(cast, RuleKind.CREDIT, amount_nano=100 * USD)
    with django_capture_on_commit_callbacks(execute=True):
        evaluate_all(now=timezone.now())
    (task,) = queued
    assert task[0] == "send_alert_mail"
    mail.outbox.clear()
    for _ in range(2):
        services.send_mail(task[1])
    assert [each.to for each in mail.outbox] == [["ada@example.com"], ["dee@example.com"]]
    assert "below $100.00" in mail.outbox[0].subject
    assert f"/o/{cast.organization.slug}/alerts" in str(mail.outbox[0].body)


def test_mail_that_fails_is_found_again(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(cast, RuleKind.CREDIT, amount_nano=100 * USD)
    now = timezone.now()
    evaluate_all(now=now)
    alert = Alert.objects.get()

    def fail(*_: Any, **__: Any) -> int:
        raise ConnectionRefusedError

    monkeypatch.setattr("django.core.mail.EmailMultiAlternatives.send", fail)
    with pytest.raises(ConnectionRefusedError):
        services.send_mail(alert.id)
    assert services.unmailed(now=now + timedelta(minutes=2)) == [alert.id]


class TestSignatures:
    def test_signature_is_the_one_of_the_standard_webhooks_specification(self) -> None:
        """The example of the specification's own libraries."""
        signature = signatures.sign(
            # In two parts, so that it does not look like a secret that leaked.
            "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp=1614265330,
            body=b'{"test": 2432232314}',
        )
        assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    def test_secrets_are_sealed_in_the_database(self, cast: Cast, settings: Any) -> None:
        sealed = seal("whsec_abc")
        assert "abc" not in sealed
        assert unseal(sealed) == "whsec_abc"
        settings.SECRET_KEY = "another secret key, of at least 32 characters"
        with pytest.raises(SealBroken):
            unseal(sealed)


class Receiver(http.server.ThreadingHTTPServer):
    """A customer's program: keeps what it gets, and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 204
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook?a=1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class TestDeliveries:
    @pytest.fixture
    def issued(self, cast: Cast, receiver: Receiver, settings: Any, queued: Any) -> webhooks.IssuedEndpoint:
        settings.WEBHOOK_ALLOW_PRIVATE = True
        return webhooks.add(organization=cast.organization, url=receiver.url, description="ours", actor=cast.ada)

    def test_an_alert_is_sent_signed_to_every_webhook_once(
        self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint
    ) -> None:
        rule(cast, RuleKind.CREDIT, amount_nano=100 * USD)
        now = timezone.now()
        evaluate_all(now=now)
        (waiting,) = WebhookDelivery.objects.all()
        for _ in range(2):
            deliveries.deliver(waiting.id)
        ((headers, body),) = receiver.got
        waiting.refresh_from_db()
        assert (waiting.state, waiting.attempts, waiting.last_status) == (DeliveryState.DELIVERED, 1, 204)
        assert body.decode() == waiting.body
        event = json.loads(body)
        assert (event["type"], event["organization"]) == ("alert.credit", cast.organization.slug)
        assert event["id"] == headers["webhook-id"] == str(Alert.objects.get().event_id)
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
        assert headers["webhook-signature"] == signatures.sign(
            issued.secret, message_id=event["id"], timestamp=int(headers["webhook-timestamp"]), body=body
        )

    def test_for_a_day_after_a_rotation_both_secrets_sign(
        self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint
    ) -> None:
        again = webhooks.rotate_secret(endpoint=issued.endpoint, actor=cast.ada)
        deliveries.deliver(webhooks.send_test(endpoint=again.endpoint, actor=cast.ada).id)
        ((headers, body),) = receiver.got
        sent = {"message_id": headers["webhook-id"], "timestamp": int(headers["webhook-timestamp"]), "body": body}
        assert headers["webhook-signature"].split(" ") == [
            signatures.sign(secret, **sent) for secret in (again.secret, issued.secret)
        ]
        WebhookEndpoint.objects.update(previous_works_until=timezone.now())
        deliveries.deliver(webhooks.send_test(endpoint=again.endpoint, actor=cast.ada).id)
        assert " " not in receiver.got[1][0]["webhook-signature"]

    def test_failures_are_tried_again_later_and_given_up_in_the_end(
        self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint
    ) -> None:
        receiver.status = 503
        sent = webhooks.send_test(endpoint=issued.endpoint, actor=cast.ada)
        now = timezone.now()
        waits = []
        for _ in range(len(deliveries.BACKOFF)):
            deliveries.deliver(sent.id, now=now)
            sent.refresh_from_db()
            assert sent.state == DeliveryState.PENDING
            assert sent.next_attempt_at is not None
            waits.append(sent.next_attempt_at - now)
            # Too early: nothing is sent.
            deliveries.deliver(sent.id, now=sent.next_attempt_at - timedelta(seconds=1))
            now = sent.next_attempt_at
            assert deliveries.due(now=now) == [sent.id]
        assert waits == deliveries.BACKOFF
        deliveries.deliver(sent.id, now=now)
        sent.refresh_from_db()
        assert (sent.state, sent.attempts, sent.last_status) == (DeliveryState.FAILED, 9, 503)
        assert len(receiver.got) == 9
        assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1

    def test_resend_starts_anew_and_is_on_record(
        self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint, signed_in: Callable[..., Client]
    ) -> None:
        receiver.status = 410
        sent = webhooks.send_test(endpoint=issued.endpoint, actor=cast.ada)
        deliveries.deliver(sent.id)
        sent.refresh_from_db()
        assert sent.state == DeliveryState.FAILED
        receiver.status = 200
        address = reverse("portal:delivery_resend", args=[cast.organization.slug, sent.id])
        assert signed_in(cast.ada).post(address).status_code == 302
        deliveries.deliver(sent.id)
        sent.refresh_from_db()
        assert sent.state == DeliveryState.DELIVERED
        assert AuditEvent.objects.filter(action="webhook.resent").count() == 1
        page = signed_in(cast.ben).get(reverse("portal:delivery", args=[cast.organization.slug, sent.id]))
        assert b"webhook.test" in page.content
        assert b"Send again" not in page.content

    def test_redirects_are_not_followed(self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint) -> None:
        receiver.status, receiver.headers = 307, {"location": receiver.url}
        sent = webhooks.send_test(endpoint=issued.endpoint, actor=cast.ada)
        deliveries.deliver(sent.id)
        sent.refresh_from_db()
        assert "redirects are not followed" in sent.last_error
        assert len(receiver.got) == 1

    def test_a_worker_that_dies_lets_the_delivery_go(
        self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = webhooks.send_test(endpoint=issued.endpoint, actor=cast.ada)
        now = timezone.now()

        def die(_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(deliveries, "_attempt", die)
            with pytest.raises(KeyboardInterrupt):
                deliveries.deliver(sent.id, now=now)
        deliveries.deliver(sent.id, now=now + timedelta(seconds=30))
        assert not receiver.got
        deliveries.deliver(sent.id, now=now + deliveries.LEASE)
        assert len(receiver.got) == 1

    def test_what_is_private_is_not_called_even_if_it_was_added_before(
        self, cast: Cast, receiver: Receiver, issued: webhooks.IssuedEndpoint, settings: Any
    ) -> None:
        settings.WEBHOOK_ALLOW_PRIVATE = False
        WebhookEndpoint.objects.update(url=receiver.url.replace("http:", "https:"))
        sent = webhooks.send_test(endpoint=issued.endpoint, actor=cast.ada)
        sent.endpoint.refresh_from_db()
        deliveries.deliver(sent.id)
        sent.refresh_from_db()
        assert "private network" in sent.last_error
        assert not receiver.got


def test_page_refuses_a_private_target_and_shows_a_secret_once(
    cast: Cast, signed_in: Callable[..., Client], settings: Any
) -> None:
    address = reverse("portal:webhooks", args=[cast.organization.slug])
    refused = signed_in(cast.ada).post(address, {"url": "https://169.254.169.254/latest/meta-data"})
    assert refused.status_code == 400
    assert b"private network" in refused.content
    settings.WEBHOOK_ALLOW_PRIVATE = True
    made = signed_in(cast.ada).post(address, {"url": "http://127.0.0.1:9/hook"})
    secret = made.context["issued"].secret
    assert secret.startswith("whsec_")
    assert secret not in signed_in(cast.ada).get(address).content.decode()
    assert secret not in WebhookEndpoint.objects.get().sealed_secret


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"what": "budget:month"}, "amount"),
        ({"what": "budget:month", "amount": "ten"}, "amount"),
        ({"what": "budget:month", "amount": "10", "thresholds": "80, x"}, "thresholds"),
        ({"what": "failures:", "thresholds": "120"}, "thresholds"),
        ({"what": "spend_anomaly:", "amount": "1", "thresholds": "200 300"}, "thresholds"),
        ({"what": "nothing"}, "what"),
    ],
)
def test_wrong_rules_are_refused_at_their_field(
    cast: Cast, signed_in: Callable[..., Client], fields: dict[str, str], wrong: str
) -> None:
    answer = signed_in(cast.ada).post(reverse("portal:alert_rule_new", args=[cast.organization.slug]), fields)
    assert answer.status_code == 400
    assert set(answer.context["form"].errors) == {wrong}
    assert not AlertRule.objects.exists()
