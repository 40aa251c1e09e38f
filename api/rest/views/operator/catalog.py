"""Models, deployments, prices, discounts and volume tiers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from django.forms.models import model_to_dict
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import OperatorView, check_form, page_of, read_body
from api.rest.serializers.operator_catalog import (
    CatalogModelSerializer,
    CatalogPriceSerializer,
    DeploymentSerializer,
    DiscountEndSerializer,
    DiscountPreviewSerializer,
    DiscountSerializer,
    NewDiscountSerializer,
    NewPriceSerializer,
    PricePreviewSerializer,
    TiersPreviewSerializer,
    TiersSerializer,
)
from billing.pricing import selectors as pricing
from billing.pricing.selectors import Tier
from portal.catalog import selectors, services, status
from portal.catalog.forms import AnyModelDiscountForm, DeploymentForm, DiscountEndForm, ModelForm, PriceForm
from portal.operator import previews, rows
from portal.operator import selectors as operator

TAG = "operator: models and prices"
# What the form of a price calls its fields.
_PRICE_NAMES = {
    "input_price": "input",
    "cached_input_price": "cached_input",
    "output_price": "output",
    "cache_write_price": "cache_write",
    "reasoning_price": "reasoning",
}


def _models(found: list[Any]) -> list[Any]:
    prices = {model.name: pricing.current_price(model.name, timezone.now()) for model in found}
    return list(CatalogModelSerializer(found, many=True, context={"prices": prices}).data)


class CatalogModels(OperatorView):
    @extend_schema(
        operation_id="operator_list_models", tags=[TAG], responses=page_of("OperatorModels", CatalogModelSerializer)
    )
    def get(self, request: Request) -> Response:
        """All models, published or not, with the list price in force."""
        return Response({"data": _models(selectors.all_models()), "next": None})

    @extend_schema(
        operation_id="operator_add_model",
        tags=[TAG],
        request=CatalogModelSerializer,
        responses={201: CatalogModelSerializer},
    )
    def post(self, request: Request) -> Response:
        """Add a model. It needs a price and a deployment before it can be called."""
        form = ModelForm(_whole(read_body(_body(CatalogModelSerializer, request)), ModelForm))
        check_form(form)
        made = services.save_model(model=form.save(commit=False), actor=self.person)
        return Response(_models([made])[0], status=201)


def _body(serializer: type[Any], request: Request, **options: Any) -> Any:
    return serializer(data=request.data, context={"prices": {}, "statuses": {}}, **options)


def _whole(wanted: Mapping[str, Any], form: Any, row: Any = None) -> dict[str, Any]:
    """A form's whole data: what was sent, and for the rest the row as it is."""
    names = form._meta.fields
    kept = model_to_dict(row, fields=names) if row is not None else model_to_dict(form._meta.model(), fields=names)
    return {name: wanted.get(name, kept[name]) for name in names}


class CatalogModel(OperatorView):
    @extend_schema(operation_id="operator_show_model", tags=[TAG], responses=CatalogModelSerializer)
    def get(self, request: Request, model_id: int) -> Response:
        """One model."""
        return Response(_models([rows.model(model_id)])[0])

    @extend_schema(
        operation_id="operator_change_model",
        tags=[TAG],
        request=CatalogModelSerializer,
        responses=CatalogModelSerializer,
    )
    def patch(self, request: Request, model_id: int) -> Response:
        """Change it; the gateways follow within seconds. A name that is sent must be the one it has."""
        found = rows.model(model_id)
        wanted = read_body(_body(CatalogModelSerializer, request, partial=True))
        form = ModelForm(_whole(wanted, ModelForm, found), instance=found)
        check_form(form)
        services.save_model(model=form.save(commit=False), actor=self.person)
        return Response(_models([found])[0])


class CatalogPrices(OperatorView):
    @extend_schema(
        operation_id="operator_list_prices", tags=[TAG], responses=page_of("OperatorPrices", CatalogPriceSerializer)
    )
    def get(self, request: Request, model_id: int) -> Response:
        """Every version of the model's prices, newest first: the list prices, and those of single organizations."""
        found = rows.model(model_id)
        own = operator.overrides(found.name)
        versions = [*pricing.price_history(found.name), *(version for version, _ in own)]
        versions.sort(key=lambda version: version.effective_from, reverse=True)
        slugs = {tenant.id: tenant.slug for _, tenant in own}
        shown = CatalogPriceSerializer(versions, many=True, context={"slugs": slugs}).data
        return Response({"data": shown, "next": None})

    @extend_schema(operation_id="operator_set_price", tags=[TAG], request=NewPriceSerializer, responses={204: None})
    def post(self, request: Request, model_id: int) -> Response:
        """Set a price from a moment on; earlier calls keep theirs. 409 `price_changed`: see `seen_price_id`."""
        found = rows.model(model_id)
        form = _price_form(request)
        services.change_price(
            model=found,
            **asdict(form.figures()),
            effective_from=form.cleaned_data["effective_from"],
            effective_until=form.cleaned_data["effective_until"],
            organization=form.cleaned_data["organization"],
            currency=form.cleaned_data["currency"],
            seen_price_id=form.cleaned_data["seen_price_id"],
            actor=self.person,
        )
        return Response(status=204)


def _price_form(request: Request) -> PriceForm:
    wanted = read_body(NewPriceSerializer(data=request.data))
    form_names = {name: form_name for form_name, name in _PRICE_NAMES.items()}
    form = PriceForm({form_names.get(name, name): value for name, value in wanted.items()})
    check_form(form, _PRICE_NAMES)
    return form


class CatalogPricePreview(OperatorView):
    changes_nothing = True

    @extend_schema(
        operation_id="operator_preview_price", tags=[TAG], request=NewPriceSerializer, responses=PricePreviewSerializer
    )
    def post(self, request: Request, model_id: int) -> Response:
        """What last month's calls would have cost at this price. Nothing is changed."""
        found = rows.model(model_id)
        form = _price_form(request)
        preview = previews.of_price(
            found,
            form.figures(),
            organization=form.cleaned_data["organization"],
            currency=form.cleaned_data["currency"],
        )
        shown = {
            "currency": preview.currency,
            "sum": preview.sum,
            "organizations": [{"change": change, "tenant": tenant} for change, tenant in preview.rows],
            "others": preview.others,
        }
        return Response(PricePreviewSerializer(shown).data)


def _deployments(found: list[Any]) -> list[Any]:
    statuses = status.read(each.id for each in found)
    return list(DeploymentSerializer(found, many=True, context={"statuses": statuses}).data)


class Deployments(OperatorView):
    @extend_schema(
        operation_id="operator_list_deployments",
        tags=[TAG],
        responses=page_of("OperatorDeployments", DeploymentSerializer),
    )
    def get(self, request: Request) -> Response:
        """Where models run, and what each deployment last said of itself."""
        return Response({"data": _deployments(selectors.deployments()), "next": None})


class ModelDeployments(OperatorView):
    @extend_schema(
        operation_id="operator_add_deployment",
        tags=[TAG],
        request=DeploymentSerializer,
        responses={201: DeploymentSerializer},
    )
    def post(self, request: Request, model_id: int) -> Response:
        """Say where the model runs; the gateways follow within seconds."""
        found = rows.new_deployment(rows.model(model_id))
        form = DeploymentForm(
            _whole(read_body(_body(DeploymentSerializer, request)), DeploymentForm, found), instance=found
        )
        check_form(form)
        made = services.save_deployment(deployment=form.save(commit=False), actor=self.person)
        return Response(_deployments([made])[0], status=201)


class Deployment(OperatorView):
    @extend_schema(operation_id="operator_show_deployment", tags=[TAG], responses=DeploymentSerializer)
    def get(self, request: Request, deployment_id: int) -> Response:
        """One deployment."""
        return Response(_deployments([rows.deployment(deployment_id)])[0])

    @extend_schema(
        operation_id="operator_change_deployment",
        tags=[TAG],
        request=DeploymentSerializer,
        responses=DeploymentSerializer,
    )
    def patch(self, request: Request, deployment_id: int) -> Response:
        """Change it, such as its weight, or whether it gets traffic."""
        found = rows.deployment(deployment_id)
        wanted = read_body(_body(DeploymentSerializer, request, partial=True))
        form = DeploymentForm(_whole(wanted, DeploymentForm, found), instance=found)
        check_form(form)
        services.save_deployment(deployment=form.save(commit=False), actor=self.person)
        return Response(_deployments([found])[0])


class Discounts(OperatorView):
    @extend_schema(
        operation_id="operator_list_discounts", tags=[TAG], responses=page_of("OperatorDiscounts", DiscountSerializer)
    )
    def get(self, request: Request) -> Response:
        """Discounts of single organizations, newest first, those that are over included."""
        found = [{"discount": discount, "tenant": tenant} for discount, tenant in operator.discounts()]
        return Response({"data": DiscountSerializer(found, many=True).data, "next": None})

    @extend_schema(
        operation_id="operator_give_discount", tags=[TAG], request=NewDiscountSerializer, responses={204: None}
    )
    def post(self, request: Request) -> Response:
        """Give an organization so much off one list price, or all of them, from now on."""
        form = _discount_form(request)
        services.discount_price(
            key=str(form.cleaned_data["key"]),
            model=form.cleaned_data["model"],
            organization=form.cleaned_data["organization"],
            basis_points=form.cleaned_data["percent"],
            effective_from=timezone.now(),
            effective_until=form.cleaned_data["effective_until"],
            reason=form.cleaned_data["reason"],
            actor=self.person,
        )
        return Response(status=204)


def _discount_form(request: Request) -> AnyModelDiscountForm:
    form = AnyModelDiscountForm({"key": uuid.uuid4()} | read_body(NewDiscountSerializer(data=request.data)))
    check_form(form)
    return form


class DiscountPreview(OperatorView):
    changes_nothing = True

    @extend_schema(
        operation_id="operator_preview_discount",
        tags=[TAG],
        request=NewDiscountSerializer,
        responses=DiscountPreviewSerializer,
    )
    def post(self, request: Request) -> Response:
        """What the discount would have taken off last month's calls. Nothing is changed."""
        form = _discount_form(request)
        change = previews.of_discount(
            organization=form.cleaned_data["organization"],
            model=form.cleaned_data["model"],
            basis_points=form.cleaned_data["percent"],
        )
        return Response(DiscountPreviewSerializer(change).data)


class DiscountEnd(OperatorView):
    @extend_schema(
        operation_id="operator_end_discount", tags=[TAG], request=DiscountEndSerializer, responses={204: None}
    )
    def post(self, request: Request, discount_id: int) -> Response:
        """End a discount now. Calls that began before keep their price; a repeat changes nothing."""
        found = rows.discount(discount_id)
        form = DiscountEndForm(read_body(DiscountEndSerializer(data=request.data)))
        check_form(form)
        services.stop_discount(discount=found, reason=form.cleaned_data["reason"], actor=self.person)
        return Response(status=204)


class AgreedPrices(OperatorView):
    @extend_schema(
        operation_id="operator_list_agreed_prices",
        tags=[TAG],
        responses=page_of("OperatorAgreedPrices", CatalogPriceSerializer),
    )
    def get(self, request: Request) -> Response:
        """Prices of single organizations that are in force or will be, discounts left out."""
        found = operator.agreed_prices(timezone.now())
        slugs = {tenant.id: tenant.slug for _, tenant in found}
        versions = [version for version, _ in found]
        shown = CatalogPriceSerializer(versions, many=True, context={"slugs": slugs}).data
        return Response({"data": shown, "next": None})


def _tiers_shown() -> dict[str, Any]:
    tiers = [
        {"from_tokens": tier.from_tokens, "percent": Decimal(tier.basis_points) / 100}
        for tier in pricing.volume_tiers()
    ]
    shown: dict[str, Any] = TiersSerializer({"tiers": tiers}).data
    return shown


def _tiers_wanted(request: Request) -> list[Tier]:
    wanted = read_body(TiersSerializer(data=request.data))
    return [Tier(row["from_tokens"], int(row["percent"] * 100)) for row in wanted["tiers"]]


class VolumeTiers(OperatorView):
    @extend_schema(operation_id="operator_show_volume_tiers", tags=[TAG], responses=TiersSerializer)
    def get(self, request: Request) -> Response:
        """What a month's tokens give off the next month."""
        return Response(_tiers_shown())

    @extend_schema(
        operation_id="operator_set_volume_tiers", tags=[TAG], request=TiersSerializer, responses=TiersSerializer
    )
    def put(self, request: Request) -> Response:
        """Replace the tiers; what this month was given stays."""
        services.change_volume_tiers(tiers=_tiers_wanted(request), actor=self.person)
        return Response(_tiers_shown())


class VolumeTiersPreview(OperatorView):
    changes_nothing = True

    @extend_schema(
        operation_id="operator_preview_volume_tiers",
        tags=[TAG],
        request=TiersSerializer,
        responses=TiersPreviewSerializer,
    )
    def post(self, request: Request) -> Response:
        """What these tiers would have taken off last month's calls. Nothing is changed."""
        preview = previews.of_tiers(_tiers_wanted(request))
        moved = [
            SimpleNamespace(tokens=row.tokens, percent=f"{row.percent:f}", change=row.change, tenant=tenant)
            for row, tenant in preview.rows
        ]
        shown = {
            "billed_nano": preview.billed_nano,
            "proposed_nano": preview.proposed_nano,
            "organizations": moved,
            "others": preview.others,
        }
        return Response(TiersPreviewSerializer(shown).data)
