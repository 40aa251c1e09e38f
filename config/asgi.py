"""The web process: the API in front, Django behind it."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.core.asgi import get_asgi_application

# Before anything that imports models.
django_application = get_asgi_application()

from api.routing import Application  # noqa: E402

application = Application(django_application)
