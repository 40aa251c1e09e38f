"""What an operator has done in the seeded product."""

from __future__ import annotations

from typing import Any


def operate(cast: Any) -> dict[str, object]:
    """A limit template in its second version, which some have in the first, and a call whose receipt differs."""
    from datetime import timedelta

    from django.utils import timezone

    from billing.reconciliation.services import EngineReceipt, apply_receipts
    from portal.limit_templates import selectors, services
    from portal.limit_templates.content import Content, LimitKey, LimitValue
    from portal.organizations.models import Organization
    from tests.factories.portal import MODEL
    from tests.factories.usage import use

    limits = {
        LimitKey("requests", "minute"): LimitValue(600, "hard"),
        LimitKey("spend", "month"): LimitValue(100_000_000_000, "hard"),
    }
    template = services.make_template(name="Standard", content=Content(limits), actor=cast.oda, reason="First terms")
    first = selectors.newest_version(template)
    for organization in (cast.organization, Organization.objects.get(members__user=cast.cyd)):
        services.apply_template(organization=organization, version=first, actor=cast.oda, reason="First terms")
    limits |= {
        LimitKey("requests", "minute"): LimitValue(300, "hard"),
        LimitKey("tokens", "day"): LimitValue(5_000_000, "soft"),
    }
    services.change_template(
        template=template, name="Standard", content=Content(limits, 0), actor=cast.oda, reason="Autumn terms"
    )
    ended = timezone.now() - timedelta(minutes=2)
    key = cast.project.api_keys.order_by("id")[0]
    request_id = use(
        key,
        MODEL,
        started_at=ended,
        price_at=timezone.now(),
        prompt_tokens=1000,
        cached_tokens=640,
        completion_tokens=100,
    )
    told = EngineReceipt(
        sequence=1,
        request_id=request_id,
        model=MODEL,
        status="completed",
        prompt_tokens=1000,
        cached_tokens=512,
        completion_tokens=98,
        reasoning_tokens=0,
        error_code="",
        started_at=ended,
        finished_at=ended + timedelta(seconds=2),
        ttft_ms=180.0,
        tenant=str(cast.organization.id),
    )
    apply_receipts(source="retired engine", receipts=[told])
    return {"template_id": template.id, "call_id": str(request_id)}
