"""Alert rules, alerts, webhooks and their deliveries."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.rest.base import NO_STORE, ManagementView, check_form, lists, page, page_of, read_body, read_query
from api.rest.serializers.alerts import (
    AlertRuleSerializer,
    AlertSerializer,
    DeliveryDetailSerializer,
    DeliveryQuery,
    DeliverySerializer,
    IssuedWebhookSerializer,
    NewAlertRuleSerializer,
    WebhookChangeSerializer,
    WebhookSerializer,
)
from api.rest.views.scopes import offered, scope_value
from portal import access
from portal.alerts import selectors, services, webhooks
from portal.alerts.forms import AlertRuleForm
from portal.alerts.webhooks import IssuedEndpoint
from portal.permissions import Permission

TAG = "alerts and webhooks"


class AlertRules(ManagementView):
    @extend_schema(operation_id="list_alert_rules", tags=[TAG], responses=page_of("AlertRules", AlertRuleSerializer))
    def get(self, request: Request, slug: str) -> Response:
        """What is watched."""
        organization = access.organization_for(self.person, slug, Permission.VIEW_ALERTS)
        rules = selectors.rules_of(organization)
        return Response({"data": AlertRuleSerializer(rules, many=True).data, "next": None})

    @extend_schema(
        operation_id="create_alert_rule",
        tags=[TAG],
        request=NewAlertRuleSerializer,
        responses={201: AlertRuleSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Watch a budget, the credit, unusual spend or failing calls, from within a minute on."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_ALERTS)
        wanted = read_body(NewAlertRuleSerializer(data=request.data))
        scope = scope_value(organization, wanted["scope"])
        fields = {**wanted, "scope": scope, "thresholds": ",".join(map(str, wanted["thresholds"]))}
        form = AlertRuleForm(fields, name=organization.name, **offered(organization, scope))
        check_form(form)
        rule = services.create_rule(organization=organization, actor=self.person, **form.cleaned_data["rule"])
        return Response(AlertRuleSerializer(rule).data, status=201)


class AlertRuleDetail(ManagementView):
    @extend_schema(operation_id="remove_alert_rule", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, rule_id: int) -> Response:
        """Watch it no longer; the alerts that it raised go with it."""
        rule = access.alert_rule_for(self.person, slug, rule_id, Permission.MANAGE_ALERTS)
        services.remove_rule(rule=rule, actor=self.person)
        return Response(status=204)


class Alerts(ManagementView):
    @lists("list_alerts", AlertSerializer, tag=TAG, summary="What was found, newest first")
    def get(self, request: Request, slug: str) -> Response:
        organization = access.organization_for(self.person, slug, Permission.VIEW_ALERTS)
        return page(
            request,
            lambda after, limit: selectors.alerts_page(organization, after=after, limit=limit),
            AlertSerializer,
        )


def _shown_once(issued: IssuedEndpoint, status: int) -> Response:
    answer = {**WebhookSerializer(issued.endpoint).data, "secret": issued.secret}
    return Response(answer, status=status, headers=NO_STORE)


class Webhooks(ManagementView):
    @extend_schema(operation_id="list_webhooks", tags=[TAG], responses=page_of("Webhooks", WebhookSerializer))
    def get(self, request: Request, slug: str) -> Response:
        """Where alerts are sent."""
        organization = access.organization_for(self.person, slug, Permission.VIEW_ALERTS)
        found = selectors.endpoints_of(organization)
        return Response({"data": WebhookSerializer(found, many=True).data, "next": None})

    @extend_schema(
        operation_id="add_webhook", tags=[TAG], request=WebhookSerializer, responses={201: IssuedWebhookSerializer}
    )
    def post(self, request: Request, slug: str) -> Response:
        """Add a webhook. The answer holds its signing secret, once."""
        organization = access.organization_for(self.person, slug, Permission.MANAGE_ALERTS)
        wanted = read_body(WebhookSerializer(data=request.data))
        issued = webhooks.add(
            organization=organization,
            url=wanted["url"],
            description=wanted.get("description", ""),
            actor=self.person,
        )
        return _shown_once(issued, 201)


class WebhookDetail(ManagementView):
    def _found(self, slug: str, webhook_id: int) -> Any:
        return access.webhook_for(self.person, slug, webhook_id, Permission.MANAGE_ALERTS)

    @extend_schema(
        operation_id="change_webhook", tags=[TAG], request=WebhookChangeSerializer, responses=WebhookSerializer
    )
    def patch(self, request: Request, slug: str, webhook_id: int) -> Response:
        """Change address or description, or switch it on or off."""
        found = self._found(slug, webhook_id)
        wanted = read_body(WebhookChangeSerializer(data=request.data, partial=True))
        webhooks.change(
            endpoint=found,
            url=wanted.get("url", found.url),
            description=wanted.get("description", found.description),
            is_enabled=wanted.get("is_enabled", found.is_enabled),
            actor=self.person,
        )
        return Response(WebhookSerializer(found).data)

    @extend_schema(operation_id="remove_webhook", tags=[TAG], responses={204: None})
    def delete(self, request: Request, slug: str, webhook_id: int) -> Response:
        """Remove it with its deliveries."""
        webhooks.remove(endpoint=self._found(slug, webhook_id), actor=self.person)
        return Response(status=204)


class WebhookSecret(ManagementView):
    @extend_schema(operation_id="rotate_webhook_secret", tags=[TAG], request=None, responses=IssuedWebhookSerializer)
    def post(self, request: Request, slug: str, webhook_id: int) -> Response:
        """A new signing secret; for a day both sign. The answer holds it, once."""
        endpoint = access.webhook_for(self.person, slug, webhook_id, Permission.MANAGE_ALERTS)
        return _shown_once(webhooks.rotate_secret(endpoint=endpoint, actor=self.person), 200)


class WebhookTest(ManagementView):
    @extend_schema(operation_id="test_webhook", tags=[TAG], request=None, responses={202: DeliverySerializer})
    def post(self, request: Request, slug: str, webhook_id: int) -> Response:
        """Send an event of the type `webhook.test`."""
        endpoint = access.webhook_for(self.person, slug, webhook_id, Permission.MANAGE_ALERTS)
        return Response(DeliverySerializer(webhooks.send_test(endpoint=endpoint, actor=self.person)).data, status=202)


class Deliveries(ManagementView):
    @extend_schema(
        operation_id="list_deliveries",
        tags=[TAG],
        parameters=[DeliveryQuery],
        responses=page_of("Deliveries", DeliverySerializer),
    )
    def get(self, request: Request, slug: str) -> Response:
        """What was sent to webhooks in the last 30 days, newest first."""
        organization = access.organization_for(self.person, slug, Permission.VIEW_ALERTS)
        filters = selectors.DeliveryFilters(**read_query(DeliveryQuery, request))
        return page(
            request,
            lambda after, limit: selectors.deliveries_page(organization, filters, after=after, limit=limit),
            DeliverySerializer,
        )


class DeliveryDetail(ManagementView):
    @extend_schema(operation_id="show_delivery", tags=[TAG], responses=DeliveryDetailSerializer)
    def get(self, request: Request, slug: str, delivery_id: int) -> Response:
        """One delivery with its body."""
        found = access.delivery_for(self.person, slug, delivery_id, Permission.VIEW_ALERTS)
        return Response(DeliveryDetailSerializer(found).data)


class DeliveryResend(ManagementView):
    @extend_schema(operation_id="resend_delivery", tags=[TAG], request=None, responses={202: None})
    def post(self, request: Request, slug: str, delivery_id: int) -> Response:
        """Send it again, with the same id and body."""
        found = access.delivery_for(self.person, slug, delivery_id, Permission.MANAGE_ALERTS)
        webhooks.resend(delivery=found, actor=self.person)
        return Response(status=202)
