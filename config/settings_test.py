"""The few overrides for tests. `tests/conftest.py` sets the environment first."""

from __future__ import annotations

from config.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
# With a pool, dropping the test database fails: "is being accessed by other users".
del DATABASES["default"]["OPTIONS"]["pool"]  # noqa: F405
# Nothing is collected for tests.
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}  # noqa: F405
