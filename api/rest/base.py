"""What every view of the management API shares: who may call, how often, how lists are paged, how a form is reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from django import forms
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import SAFE_METHODS, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from api.rest.authentication import ManagementKeyAuthentication, ManagementThrottle
from api.rest.errors import RestErrors
from portal import access

PAGE_LIMIT = 200
DEFAULT_LIMIT = 50
View = TypeVar("View", bound=Callable[..., Any])
NO_STORE = {"Cache-Control": "no-store"}


class ManagementView(RestErrors, APIView):
    """Only the organization's members see that it exists."""

    authentication_classes = (ManagementKeyAuthentication, SessionAuthentication)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (ManagementThrottle,)

    @property
    def person(self) -> Any:
        """The user who acts; behind IsAuthenticated."""
        return self.request.user

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """A misspelt filter must not be passed over in silence: the answer would be everything."""
        known = known_query(request)
        unknown = sorted(set(request.query_params) - known) if known and response.status_code == 200 else []
        if unknown:
            error = ValidationError({unknown[0]: [f"Unknown parameter; known are {', '.join(sorted(known))}."]})
            response = self.handle_exception(error)
        return super().finalize_response(request, response, *args, **kwargs)


class OperatorView(ManagementView):
    """There for operators only, signed in or with an operator key; one that only reads gets 403 where something
    changes."""

    # Of views whose POST only computes.
    changes_nothing = False

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        changes = request.method not in SAFE_METHODS and not self.changes_nothing
        access.require_operator(request.user, changes=changes)


class PageQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(required=False, min_value=1, help_text="`next` of the page before.")
    limit = serializers.IntegerField(required=False, default=DEFAULT_LIMIT, min_value=1, max_value=PAGE_LIMIT)


def page_of(name: str, item: type[serializers.Serializer[Any]]) -> Any:
    """The schema of a page of these items."""
    return inline_serializer(
        f"{name}Page",
        {
            "data": item(many=True),
            "next": serializers.CharField(allow_null=True, help_text="Pass it as `after` for the next, older page."),
        },
    )


def known_query(request: Request, *names: str) -> set[str]:
    """The parameters that this call's view has asked for, `names` from now on among them."""
    known: set[str] = request.__dict__.setdefault("known_query", set())
    known.update(names)
    return known


def read_query(serializer: type[serializers.Serializer[Any]], request: Request) -> dict[str, Any]:
    query = serializer(data=request.query_params)
    known_query(request, *query.fields)
    query.is_valid(raise_exception=True)
    return dict(query.validated_data)


def read_body(serializer: serializers.Serializer[Any]) -> dict[str, Any]:
    """The validated fields. An unknown field is an error: a misspelt one must not be passed over in silence."""
    unknown = set(serializer.initial_data) - set(serializer.fields) if isinstance(serializer.initial_data, dict) else ()
    if unknown:
        raise ValidationError({sorted(unknown)[0]: [f"Unknown field; known are {', '.join(serializer.fields)}."]})
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


def page(
    request: Request,
    load: Callable[[int | None, int], tuple[Sequence[Any], int | None]],
    item: type[serializers.Serializer[Any]],
    **context: Any,
) -> Response:
    """Newest first. `load(after, limit)` gives the rows and the key of the next page."""
    query = read_query(PageQuery, request)
    rows, following = load(query.get("after"), query["limit"])
    data = item(rows, many=True, context=context).data
    return Response({"data": data, "next": None if following is None else str(following)})


def by_id(rows: Any) -> Callable[[int | None, int], tuple[Sequence[Any], int | None]]:
    """Pages of a queryset with ids, newest first; one query a page."""

    def load(after: int | None, limit: int) -> tuple[Sequence[Any], int | None]:
        wanted = rows.order_by("-id") if after is None else rows.order_by("-id").filter(id__lt=after)
        found = list(wanted[: limit + 1])
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    return load


def check_form(form: forms.BaseForm, names: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises the errors of a page's own form, so that page and API refuse the same. `names`: what the API calls fields
    that the form calls otherwise."""
    if not form.is_valid():
        raise ValidationError(
            {names.get(name, name): [str(each) for each in errors] for name, errors in form.errors.items()}
        )


def lists(
    operation_id: str,
    item: type[serializers.Serializer[Any]],
    *,
    tag: str,
    summary: str,
    filters: Sequence[OpenApiParameter] = (),
) -> Callable[[View], View]:
    """The schema of a GET that answers with a page."""
    described: Callable[[View], View] = extend_schema(
        operation_id=operation_id,
        tags=[tag],
        summary=summary,
        description=f"{summary}.",
        parameters=[
            *filters,
            OpenApiParameter("after", int, description="`next` of the page before."),
            OpenApiParameter("limit", int, description=f"1 to {PAGE_LIMIT}; {DEFAULT_LIMIT} if not given."),
        ],
        responses=page_of(operation_id.title().replace("_", ""), item),
    )
    return described
