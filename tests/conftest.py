"""What all tests share: switches, tiers, hypothesis without chance or deadlines, signals that reach every child."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
from dht.pylibp2p.protobuf_clash import make_room_for_libp2p
from tests.kit.no_compiler import load_no_compiler
from tests.kit.tiers import EXAMPLES_AT_NIGHT, EXAMPLES_BY_DAY, is_by_day, markers_of, may_be_chosen, turn_of
from tests.kit.trainer.shared_sizes import share_sizes_child

# The same examples on every run and machine; a slow machine is no failure.
settings.register_profile("night", derandomize=True, deadline=None, max_examples=EXAMPLES_AT_NIGHT)
settings.register_profile("day", settings.get_profile("night"), max_examples=EXAMPLES_BY_DAY)
settings.load_profile("night")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=30, help="of tests/processes/night/test_kills.py; 3, 6, 9 ...")
    parser.addoption("--regenerate-golden", action="store_true", help="write tests/golden anew instead of comparing")


OF_A_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def _leave_own_surroundings(config: pytest.Config) -> None:
    """Commands look the same on every machine, and find no runs but those of tests."""
    for name in OF_A_TERMINAL:
        os.environ.pop(name, None)
    for name in [name for name in os.environ if name.startswith("MURMURATION_")]:
        del os.environ[name]
    os.environ["TERM"] = "xterm"
    home = tempfile.TemporaryDirectory(prefix="mm-data")
    os.environ["XDG_DATA_HOME"] = home.name
    config.add_cleanup(home.cleanup)


def pytest_configure(config: pytest.Config) -> None:
    _leave_own_surroundings(config)
    # Before torch is imported: the tensors of tests are small, and threads of two workers would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Under nohup or in the background of a script they are ignored, and children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Before the tests are imported, which take their numbers of examples from it.
    if is_by_day(config.option.markexpr):
        settings.load_profile("day")
    load_no_compiler()
    share_sizes_child()
    # Some test modules import hivemind, others py-libp2p, in one process.
    make_room_for_libp2p()
    # Its DHT is all of it that tests use.
    allow_parts_of_hivemind()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What cannot be chosen is not imported: with the libraries of all tests that takes longer than many tests."""
    expression = config.option.markexpr
    return True if expression and collection_path.is_file() and not may_be_chosen(collection_path, expression) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported or collected becomes garbage: to look for some was a sixth of the time until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in markers_of(item.path, is_left_out=item.get_closest_marker("nightly") is not None):
            item.add_marker(marker)
    items.sort(key=lambda item: turn_of(item.path))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: to look through it again and again was a twelfth of all tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate-golden"))
