"""Shared set-up: the environment that settings need, and the stores (given by the environment, else embedded ones)."""

from __future__ import annotations

import os

os.environ.setdefault("SECRET_KEY", "test-secret-key-test-secret-key-test-secret")
os.environ.setdefault("API_KEY_PEPPER", "test-pepper-test-pepper-test-pepper-test")
os.environ.setdefault("PUBLIC_URL", "http://127.0.0.1:8000")
