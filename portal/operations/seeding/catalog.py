"""Models with prices and deployments."""

from __future__ import annotations

from datetime import datetime, timedelta

from billing.pricing import selectors as pricing
from billing.pricing.selectors import PriceInfo
from portal.operations.seeding.copying import copy_rows, ids_of
from portal.operations.seeding.plan import DEPLOYMENTS_PER_MODEL, MODELS


def make_catalog(start: datetime) -> tuple[list[PriceInfo], list[range]]:
    """Published models with a price; their deployments are disabled, so that nobody calls them."""
    model_ids = ids_of("portal.Model", len(MODELS))
    copy_rows(
        "portal.Model",
        (
            "id",
            "name",
            "display_name",
            "context_tokens",
            "default_max_output_tokens",
            "max_output_tokens",
            "is_published",
        ),
        ((model_ids[n], name, name.replace("-", " "), 262_144, 4096, 65_536, True) for n, name in enumerate(MODELS)),
    )
    deployments = [ids_of("portal.Deployment", DEPLOYMENTS_PER_MODEL) for _ in MODELS]
    copy_rows(
        "portal.Deployment",
        ("id", "model_id", "address", "is_enabled"),
        (
            (deployment, model_ids[n], f"seed-{deployment}.invalid:50051", False)
            for n, ids in enumerate(deployments)
            for deployment in ids
        ),
    )
    price_ids = ids_of("billing.Price", len(MODELS))
    rates = [
        (400_000_000, 100_000_000, 2_030_000_000),
        (150_000_000, 40_000_000, 800_000_000),
        (50_000_000, None, 200_000_000),
    ]
    since = start - timedelta(days=400)
    copy_rows(
        "billing.Price",
        ("id", "model", "currency", "input_nano", "cached_input_nano", "output_nano", "effective_from"),
        ((price_ids[n], name, "USD", *rates[n], since) for n, name in enumerate(MODELS)),
    )
    prices = [found for price_id in price_ids if (found := pricing.price_by_id(price_id))]
    return prices, deployments
