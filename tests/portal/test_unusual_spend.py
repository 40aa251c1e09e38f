"""Alerts of unusual spend: what is ordinary for whom, and what the mail tells of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.core import mail
from django.utils import timezone

from portal.alerts import services
from portal.alerts.evaluation import evaluate_all
from portal.alerts.kinds import RuleKind
from portal.alerts.models import Alert, AlertRule
from portal.api_keys.models import ApiKey
from portal.api_keys.services import issue
from portal.catalog.models import Model
from portal.users.models import User
from tests.factories.portal import Cast
from tests.factories.usage import use

pytestmark = pytest.mark.django_db

USD = 1_000_000_000
# By the default price list, a call of 1,000,000 tokens in and none out.
CALL = {"prompt_tokens": 1_000_000, "completion_tokens": 0}


@pytest.fixture
def key(cast: Cast, model: Model) -> ApiKey:
    return issue(project=cast.project, name="laptop", actor=cast.ada).api_key


def watch_spend(cast: Cast, api_key: ApiKey | None = None) -> AlertRule:
    return services.create_rule(
        organization=cast.organization,
        kind=RuleKind.SPEND_ANOMALY,
        actor=cast.ada,
        amount_nano=USD // 10,
        thresholds=[300],
        api_key=api_key,
    )


def test_unusual_spend_is_measured_by_ordinary_hours(cast: Cast, key: ApiKey, model: Model) -> None:
    watch_spend(cast)
    now = timezone.now()
    for hours in range(2, 16):
        use(
            key,
            model.name,
            started_at=now - timedelta(hours=hours),
            price_at=now,
            prompt_tokens=100_000,
            completion_tokens=0,
        )
    use(
        key, model.name, started_at=now - timedelta(minutes=5), price_at=now, prompt_tokens=100_000, completion_tokens=0
    )
    assert evaluate_all(now=now) == 0
    use(key, model.name, started_at=now - timedelta(minutes=4), price_at=now, **CALL)
    assert evaluate_all(now=now) == 1
    assert "11.0 times an ordinary hour" in Alert.objects.get().title


def test_unusual_spend_of_a_key_is_measured_by_its_own_hours(cast: Cast, key: ApiKey, model: Model) -> None:
    """The organization's other calls are much dearer, and say nothing of what is ordinary for this key."""
    other = issue(project=cast.project, name="server", actor=cast.ada).api_key
    watch_spend(cast, key)
    now = timezone.now()
    for hours in range(2, 16):
        for each, tokens in ((key, 100_000), (other, 10_000_000)):
            use(
                each,
                model.name,
                started_at=now - timedelta(hours=hours),
                price_at=now,
                prompt_tokens=tokens,
                completion_tokens=0,
            )
    use(key, model.name, started_at=now - timedelta(minutes=4), price_at=now, **CALL)
    assert evaluate_all(now=now) == 1
    assert "10.0 times an ordinary hour" in Alert.objects.get().title


def test_mail_of_unusual_spend_tells_the_hour_the_ordinary_one_and_what_to_do(cast: Cast) -> None:
    watch = watch_spend(cast)
    organization = watch.organization
    organization.time_zone = "Europe/Berlin"
    organization.save()
    User.objects.filter(id=cast.dee.id).update(language="de")
    facts = {"spent": "0.440000000", "ordinary": "0.040000000", "currency": "USD", "threshold_percent": 300}
    span = {"spent_from": "2026-11-30T23:10:00+00:00", "spent_until": "2026-12-01T00:10:00+00:00"}
    window = datetime(2026, 12, 1, tzinfo=UTC)
    alert = services.raise_alert(rule=watch, threshold=300, window_start=window, facts={**facts, **span})
    assert alert is not None
    mail.outbox.clear()
    services.send_mail(alert.id)
    english, german = mail.outbox
    says = (
        (
            english,
            "Spent from 00:10 to 01:10 on 1 December 2026 (Europe/Berlin): $0.44 (organization).",
            "Revoke a key",
        ),
        (english, "An ordinary hour: $0.04,", "set a limit."),
        (german, "Ausgegeben von 00:10 bis 01:10 Uhr am 1. Dezember 2026 (Europe/Berlin): 0,44\xa0$", "Widerrufen Sie"),
        (german, "Eine gewöhnliche Stunde: 0,04\xa0$,", "setzen Sie ein Limit."),
    )
    for message, figures, advice in says:
        for text in (str(message.body), str(message.alternatives[0][0])):
            assert figures in text
            assert advice in text
            assert f"/o/{organization.slug}/usage?days=1" in text
        # The subject has said it.
        assert message.subject not in message.body
