"""Pages are sent compressed; what is streamed is not.

Django compresses each chunk of an asynchronous stream as a gzip file of its own, one after the other. Browsers read the
first one and take it for the whole: of a CSV file that is the line with the names of its columns.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class PageCompressionMiddleware(GZipMiddleware):
    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        return response if response.streaming else super().process_response(request, response)
