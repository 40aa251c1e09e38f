"""The portal's own calls: a signed-in member instead of a key, the same path otherwise.

The body is a Chat Completions body with one more field, `project`: {"organization": slug, "project": slug}. The call is
charged to that project through a key that the portal makes for it and whose secret nobody knows.
"""

from __future__ import annotations

import io

import msgspec
from django.contrib.auth import get_user
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from api.auth import Caller
from api.consumer import InferenceConsumer
from api.counters import KeyLimits
from api.errors import TAKES_NO_CALLS, ApiError
from api.http import Scope
from api.protocols.errors import BadRequest
from api.stores import STORE_ERRORS, in_thread
from portal.access import project_for
from portal.api_keys.selectors import find_active
from portal.api_keys.services import playground_key
from portal.permissions import Permission

PLAYGROUND_PATH = "/portal-api/chat/completions"


class ProjectField(msgspec.Struct):
    organization: str
    project: str


class PlaygroundBody(msgspec.Struct):
    project: ProjectField


class PlaygroundConsumer(InferenceConsumer):
    async def authenticate(self, body: bytes) -> Caller:
        try:
            wanted = msgspec.json.decode(body, type=PlaygroundBody).project
        except msgspec.DecodeError:
            raise BadRequest(
                "'project' must be an object with 'organization' and 'project'.", "project", "invalid_type"
            ) from None
        try:
            return await in_thread(_caller, self._scope, wanted)
        except STORE_ERRORS as error:
            raise ApiError("store_unavailable", "The service cannot check the session right now; try again.") from error


def _caller(scope: Scope, wanted: ProjectField) -> Caller:
    """Django's own session and CSRF checks, on the request's headers."""
    request = ASGIRequest(scope, io.BytesIO())
    SessionMiddleware(_never_called).process_request(request)
    request.user = get_user(request)
    if not request.user.is_authenticated:
        raise ApiError("missing_api_key", "You are signed out; sign in to the portal again.")
    csrf = CsrfViewMiddleware(_never_called)
    csrf.process_request(request)
    if csrf.process_view(request, _never_called, (), {}) is not None:
        raise ApiError("permission_denied", "The page is out of date; reload it.")
    try:
        project = project_for(request.user, wanted.organization, wanted.project, Permission.USE_PLAYGROUND)
    except (Http404, PermissionDenied):
        raise ApiError("not_found", "There is no such project.", param="project") from None
    if project.organization.is_refused:
        raise ApiError("organization_suspended", TAKES_NO_CALLS)
    if project.is_archived:
        raise ApiError("project_archived", "This project is archived; choose another one.", param="project")
    key = find_active(playground_key(project).digest)
    if key is None:
        raise ApiError("not_found", "The project is being closed.", param="project")
    return Caller(
        project.organization_id,
        project.id,
        key.api_key_id,
        project.organization.slug,
        request.user.id,
        KeyLimits(key.limits),
    )


def _never_called(request: HttpRequest) -> HttpResponse:
    raise AssertionError("The middleware is asked for its checks only.")
