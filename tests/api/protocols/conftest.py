from __future__ import annotations

import pytest

from api.protocols import sealing


@pytest.fixture(autouse=True, scope="session")
def sealing_keys() -> None:
    sealing.configure("a secret for tests")
