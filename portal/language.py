"""Pages and mails are in the reader's language: that of their account, else the one their browser asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.views.i18n import JavaScriptCatalog

LANGUAGES = dict(settings.LANGUAGES)
TEXTS_KEPT_S = 3600


class ReaderLanguageMiddleware:
    """After authentication, and before anything that writes text. Admin and management API stay English."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        chosen = getattr(request.user, "language", "")
        if request.path_info.startswith(("/admin/", "/api/")):
            language = settings.LANGUAGE_CODE
        else:
            language = chosen if chosen in LANGUAGES else translation.get_language_from_request(request)
        request.LANGUAGE_CODE = language
        with translation.override(language):
            response = self.get_response(request)
        response.headers.setdefault("Content-Language", language)
        patch_vary_headers(response, ["Accept-Language"])
        return response


class ScriptTexts(JavaScriptCatalog):
    """The texts of the scripts in one language, as a script that defines gettext()."""

    domain = "djangojs"
    packages = ["portal"]

    def get(self, request: HttpRequest, language: str, *args: Any, **kwargs: Any) -> HttpResponse:
        if language not in LANGUAGES:
            raise Http404("There is no such language.")
        with translation.override(language):
            response = super().get(request, *args, **kwargs)
        response.headers["Cache-Control"] = f"public, max-age={TEXTS_KEPT_S}"
        return response
