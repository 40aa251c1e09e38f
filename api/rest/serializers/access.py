"""Keys, organizations, members, projects and audit events as JSON."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as DjangoError
from rest_framework import serializers

from portal.api_keys.routes import Route
from portal.audit.selectors import SUBJECTS
from portal.catalog.selectors import unknown_models
from portal.client_address import parse_network
from portal.organizations.forms import TIME_ZONES
from portal.organizations.origins import ORIGINS_LIMIT, parse_origin
from portal.organizations.roles import Role
from portal.plain_text import refuse_invisible


class NetworkField(serializers.CharField):
    """An address or CIDR network, in canonical form."""

    def to_internal_value(self, data: Any) -> str:
        try:
            return str(parse_network(super().to_internal_value(data)))
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None


class OriginField(serializers.CharField):
    """A web origin, as browsers write it."""

    def to_internal_value(self, data: Any) -> str:
        try:
            return parse_origin(super().to_internal_value(data))
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None


class ApiKeySerializer(serializers.Serializer[Any]):
    """A key as it may be shown: never its secret. An empty list allows everything."""

    id = serializers.IntegerField(read_only=True)
    name = serializers.CharField(max_length=100, validators=[refuse_invisible])
    project = serializers.SlugField(source="project.slug", help_text="Slug of a project; it cannot be changed.")
    prefix = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    created_by = serializers.EmailField(source="created_by.email", read_only=True, default=None)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    rotated_at = serializers.DateTimeField(read_only=True)
    revoked_at = serializers.DateTimeField(read_only=True)
    last_used_at = serializers.DateTimeField(read_only=True, help_text="Written every few seconds.")
    routes = serializers.ListField(
        child=serializers.ChoiceField(Route.choices), required=False, source="allowed_routes"
    )
    models = serializers.ListField(
        child=serializers.CharField(max_length=100), required=False, source="allowed_models", max_length=100
    )
    networks = serializers.ListField(child=NetworkField(), required=False, source="allowed_networks", max_length=50)

    def validate_models(self, names: list[str]) -> list[str]:
        if unknown := unknown_models(names):
            raise serializers.ValidationError(f"There is no model {unknown[0]!r}; GET /api/models lists them.")
        return names


class ApiKeyChangeSerializer(ApiKeySerializer):
    """Only what is sent is changed."""

    name = serializers.CharField(max_length=100, required=False, validators=[refuse_invisible])
    project = None  # type: ignore[assignment]  # takes the inherited field away


class IssuedKeySerializer(ApiKeySerializer):
    secret = serializers.CharField(read_only=True, help_text="Shown in this answer only; it is not stored.")


class RetiredSecretSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    prefix = serializers.CharField()
    retired_at = serializers.DateTimeField()
    works_until = serializers.DateTimeField()


class RotationSerializer(serializers.Serializer[Any]):
    overlap_s = serializers.IntegerField(
        min_value=0, max_value=90 * 86_400, default=86_400, help_text="So long the old secret works too."
    )


class ManagementKeySerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    role = serializers.ChoiceField(Role.choices)
    prefix = serializers.CharField()
    networks = serializers.ListField(child=serializers.CharField(), source="allowed_networks")
    created_by = serializers.EmailField(source="created_by.email")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


def _time_zone(value: str) -> None:
    if value not in TIME_ZONES:
        raise DjangoError(f"{value!r} is not a time zone name; use one such as Europe/Amsterdam.")


class OrganizationSerializer(serializers.Serializer[Any]):
    slug = serializers.SlugField(read_only=True)
    name = serializers.CharField(max_length=100, validators=[refuse_invisible])
    time_zone = serializers.CharField(required=False, validators=[_time_zone])
    requires_two_factor = serializers.BooleanField(required=False)
    allowed_origins = serializers.ListField(
        child=OriginField(),
        required=False,
        max_length=ORIGINS_LIMIT,
        help_text="Sites whose pages may call models with the organization's keys, such as https://app.example.com.",
    )
    keeps_responses = serializers.BooleanField(
        required=False, help_text="Whether the Responses API may keep prompts and answers (`store`). Off by default."
    )
    suspended_at = serializers.DateTimeField(read_only=True)
    deletes_at = serializers.DateTimeField(
        read_only=True, help_text="Set after a deletion: calls are refused, and it can be restored until then."
    )
    created_at = serializers.DateTimeField(read_only=True)


class NewOrganizationSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100, validators=[refuse_invisible])


class MembershipSerializer(serializers.Serializer[Any]):
    organization = OrganizationSerializer()
    role = serializers.ChoiceField(Role.choices, source="role_in_force")


class MeSerializer(serializers.Serializer[Any]):
    email = serializers.EmailField()
    name = serializers.CharField()
    management_key = serializers.CharField(allow_null=True, help_text="The key that is used, if one is.")
    operator_key = serializers.CharField(allow_null=True, help_text="The same of an operator key.")
    memberships = MembershipSerializer(many=True)


class MemberSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True)
    email = serializers.EmailField(source="user.email", read_only=True)
    name = serializers.CharField(source="user.name", read_only=True)
    role = serializers.ChoiceField(Role.choices)
    joined_at = serializers.DateTimeField(read_only=True)


class InvitationSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(read_only=True)
    email = serializers.EmailField(max_length=254)
    role = serializers.ChoiceField(Role.choices)
    invited_by = serializers.EmailField(source="invited_by.email", read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    expires_at = serializers.DateTimeField(read_only=True)


class TransferSerializer(serializers.Serializer[Any]):
    member_id = serializers.IntegerField(help_text="Who becomes the owner; the caller becomes an admin.")


class ReasonField(serializers.CharField):
    """Words of whoever acts, which may be left out."""

    def __init__(self, help_text: str = "Kept in the audit log.") -> None:
        super().__init__(
            required=False,
            allow_blank=True,
            default="",
            max_length=500,
            validators=[refuse_invisible],
            help_text=help_text,
        )


class ReasonSerializer(serializers.Serializer[Any]):
    reason = ReasonField()


class ProjectSerializer(serializers.Serializer[Any]):
    slug = serializers.SlugField(read_only=True)
    name = serializers.CharField(max_length=100, validators=[refuse_invisible])
    is_default = serializers.BooleanField(read_only=True)
    archived_at = serializers.DateTimeField(read_only=True, help_text="null while its keys work.")
    created_at = serializers.DateTimeField(read_only=True)


class AuditQuery(serializers.Serializer[Any]):
    about = serializers.ChoiceField(list(SUBJECTS), required=False, allow_blank=True, default="")
    person = serializers.CharField(
        required=False, allow_blank=True, default="", help_text="Part of an address or key name."
    )
    text = serializers.CharField(
        required=False, allow_blank=True, default="", help_text="Part of the subject, action or reason."
    )
    start = serializers.DateTimeField(required=False, default=None)
    end = serializers.DateTimeField(required=False, default=None)


class AuditEventSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    actor = serializers.CharField(source="actor_label")
    credential = serializers.CharField(help_text="The management key that was used; empty in a browser.")
    action = serializers.CharField()
    subject_type = serializers.CharField()
    subject_id = serializers.CharField()
    subject = serializers.CharField(source="subject_label")
    before = serializers.JSONField()
    after = serializers.JSONField()
    reason = serializers.CharField()
    address = serializers.CharField(allow_null=True)
    user_agent = serializers.CharField()
