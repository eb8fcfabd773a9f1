"""What all tests share: the switch that rewrites golden files, and hypothesis without chance or deadlines."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden anew instead of comparing")


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate-golden"))
