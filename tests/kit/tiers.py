"""Which tests `make test-fast`, `make test` and `make test-nightly` run: docs/contributor/testing.md has the table.

- Folders decide where real parts run: everything in `REAL_FOLDERS` gets the marker `network`.
- Folders decide what waits for the night: everything in `NIGHTLY_FOLDERS` gets the marker `nightly`.
- Parameters decide what is sampled: `sampled` keeps every n-th of many like cases, and marks the others `nightly`.
- Properties with hypothesis take fewer examples by day, and tests with many like cases inside fewer of those (`some`).
- Every test has a time after which it is stuck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

TESTS = Path(__file__).parents[1]
REAL_FOLDERS = ("processes", "dht/p2pd")
"""In tests/: real daemons, real `peer` processes, a real browser."""
NIGHTLY_FOLDERS = ("benchmarks", "processes/night")
"""No volunteer runs a benchmark, and no release waits for one; what takes minutes waits for the night, too."""
SLOW_FILES = (
    "processes/peers/test_training_together.py",
    "processes/peers/test_joining.py",
    "processes/commands/test_bad_input.py",
    "processes/commands/test_own_loop.py",
    "processes/commands/test_demo.py",
    "processes/commands/test_export.py",
    "processes/commands/test_private_runs.py",
    "processes/page/test_browser.py",
    "processes/peers/test_ranks.py",
    "processes/peers/test_away.py",
    "processes/page/test_real_swarm.py",
    "processes/peers/test_leaving.py",
    "processes/peers/test_devices.py",
    "processes/peers/test_checkpoints.py",
    "processes/peers/test_two_terminals.py",
    "processes/page/test_one_text.py",
)
"""They are started first, so that no worker is left with one of them at the end."""
LIBRARY_FILES = (
    "murmuration/test_documented_loops.py",
    "murmuration/test_examples.py",
    "murmuration/test_lightning_callback.py",
    "murmuration/test_transformers_callback.py",
    "peer/export/formats/test_adapter_files.py",
    "peer/export/formats/test_hf_architecture.py",
    "peer/export/formats/test_many_architectures.py",
    "peer/trainer/data/test_labelled.py",
    "peer/trainer/test_computing.py",
    "peer/trainer/hf/test_base_weights.py",
    "peer/trainer/hf/test_architecture.py",
    "peer/trainer/hf/test_default_configs.py",
)
"""They load transformers, peft or Lightning, which takes seconds: one worker has all of them, one after the other."""
EXAMPLES_AT_NIGHT = 100
"""Of hypothesis for each property, also when somebody asks for one file."""
EXAMPLES_BY_DAY = 20
"""In `make test-fast` and `make test`."""
STUCK_SECONDS = 300.0
"""For a test without daemons; the slowest takes 7 s on two idle cores, and 140 s among twenty others."""
STUCK_REAL_SECONDS = 480.0
"""With daemons or processes; the slowest takes 100 s."""
STUCK_NIGHTLY_SECONDS = 1800.0


def is_real(path: Path) -> bool:
    """Whether the tests of this file start daemons, processes or a browser."""
    return _is_in(path, REAL_FOLDERS)


@cache
def _is_in(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(TESTS / folder) for folder in folders)


def markers_of(path: Path, *, is_left_out: bool) -> list[pytest.MarkDecorator]:
    """What a test gets for where it stands; `is_left_out`: its parameters are in no sample."""
    is_nightly = is_left_out or _is_in(path, NIGHTLY_FOLDERS)
    seconds = STUCK_NIGHTLY_SECONDS if is_nightly else STUCK_REAL_SECONDS if is_real(path) else STUCK_SECONDS
    found = [pytest.mark.timeout(seconds)]
    if is_real(path):
        found.append(pytest.mark.network)
    if is_nightly and not is_left_out:
        found.append(pytest.mark.nightly)
    return found


def may_be_chosen(path: Path, expression: str) -> bool:
    """Whether a test of this file can be what `-m EXPRESSION` asks for, as far as its folder decides."""
    of_the_night = (True,) if _is_in(path, NIGHTLY_FOLDERS) else (False, True)
    try:
        return any(eval(expression, {}, {"network": is_real(path), "nightly": nightly}) for nightly in of_the_night)
    except (NameError, SyntaxError):  # of other markers, or nonsense: pytest says so
        return True


def is_by_day(expression: str) -> bool:
    """Whether `-m EXPRESSION` leaves out what waits for the night."""
    return "not nightly" in expression


def examples(at_night: int, by_day: int | None = None) -> int:
    """`max_examples` of a property that takes another number than the others: `at_night`, and by day its share."""
    if by_day is not None and settings().max_examples < EXAMPLES_AT_NIGHT:
        return by_day
    return max(1, at_night * settings().max_examples // EXAMPLES_AT_NIGHT)


def some(cases: Sequence[T], one_in: int) -> Sequence[T]:
    """Of like cases inside of one test: by day every `one_in`-th, from the first on; at night all of them."""
    return cases[::one_in] if settings().max_examples < EXAMPLES_AT_NIGHT else cases


@cache
def turn_of(path: Path) -> int:
    """Smaller ones start earlier."""
    name = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    if name in SLOW_FILES:
        return SLOW_FILES.index(name)
    return len(SLOW_FILES) + (name not in LIBRARY_FILES)


def sampled(cases: Iterable[Any], one_in: int) -> Sequence[Any]:
    """Parameters of a test: all `cases`, of which every `one_in`-th, from the first on, is in `make test`.

    A tuple is one case of several parameters.
    """

    def at_night(case: Any) -> Any:
        return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)

    return [at_night(case) if number % one_in else case for number, case in enumerate(cases)]
