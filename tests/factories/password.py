"""What everybody in the factories signs in with; here, so that a browser can know it without Django."""

from __future__ import annotations

PASSWORD = "correct horse battery staple"
