"""What all tests share: switches, hypothesis without chance or deadlines, and signals that reach every child."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden anew instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    # Under nohup or in the background of a script they are ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate-golden"))
