"""Folders say which tests start real parts; docs/contributor/testing.md says what each tier runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kit.tiers import (
    LIBRARY_FILES,
    REAL_FOLDERS,
    SLOW_FILES,
    STUCK_NIGHTLY_SECONDS,
    STUCK_REAL_SECONDS,
    STUCK_SECONDS,
    TESTS,
    is_real,
    markers_of,
    may_be_chosen,
    sampled,
    some,
    turn_of,
)
from tests.repo.layout_rules import Source, all_imports, is_in, read_sources

STARTS_REAL_PARTS = ("dht.p2pd.host", "dht.kademlia.dht_store", "tests.kit.processes", "playwright")


def real_parts_apart(sources: Sequence[Source]) -> Iterator[str]:
    """What starts a daemon, a `peer` process or a browser stands in a folder for it, and says nothing else about it."""
    for source in sources:
        path = Path(*source.module.split(".")).with_suffix(".py")
        if not path.name.startswith("test_"):
            continue
        for name in all_imports(source):
            if any(is_in(name, one) for one in STARTS_REAL_PARTS) and not is_real(TESTS.parent / path):
                yield f"{source.module} imports {name}; expected it under one of {', '.join(REAL_FOLDERS)} in tests/"
        if "pytest.mark." + "network" in source.text:
            yield f"{source.module} marks itself as one with real parts; its folder does that"


def helpers_in_the_kit(sources: Sequence[Source]) -> Iterator[str]:
    """What several test files share stands in tests/kit."""
    for source in sources:
        for name in all_imports(source):
            if name.startswith("tests.") and any(part.startswith("test_") for part in name.split(".")):
                yield f"{source.module} imports {name}, from another test file; expected it in tests/kit"


def test_test_files_import_nothing_from_each_other() -> None:
    assert list(helpers_in_the_kit(read_sources(["tests"]))) == []
    assert list(helpers_in_the_kit([Source("tests.dht.test_x", "from tests.dht.test_y import f")]))


def test_real_parts_stand_in_their_folders() -> None:
    assert list(real_parts_apart(read_sources(["tests"]))) == []


@pytest.mark.parametrize(
    "text",
    [
        "from dht.p2pd.host import P2pdHost",
        "def f():\n    import playwright.sync_api",
        "MARK = pytest.mark." + "network",
    ],
)
def test_real_parts_elsewhere_are_noticed(text: str) -> None:
    assert list(real_parts_apart([Source("tests.dht.records.test_x", text)]))
    assert not list(real_parts_apart([Source("tests.processes.peers.test_x", "from dht.p2pd.host import P2pdHost")]))


@pytest.mark.parametrize(
    ("path", "is_left_out", "names", "seconds"),
    [
        ("processes/peers/test_x.py", False, ["timeout", "network"], STUCK_REAL_SECONDS),
        ("processes/test_x.py", True, ["timeout", "network"], STUCK_NIGHTLY_SECONDS),
        ("dht/p2pd/test_x.py", False, ["timeout", "network"], STUCK_REAL_SECONDS),
        ("dht/p2pd_x/test_x.py", False, ["timeout"], STUCK_SECONDS),
        ("swarms/test_x.py", True, ["timeout"], STUCK_NIGHTLY_SECONDS),
        ("benchmarks/test_x.py", False, ["timeout", "nightly"], STUCK_NIGHTLY_SECONDS),
        ("benchmarks/test_x.py", True, ["timeout"], STUCK_NIGHTLY_SECONDS),
    ],
)
def test_folders_give_markers_and_times(path: str, is_left_out: bool, names: list[str], seconds: float) -> None:
    markers = markers_of(TESTS / path, is_left_out=is_left_out)
    assert [marker.name for marker in markers] == names
    assert markers[0].args == (seconds,)


def test_this_test_has_the_markers_of_its_folder(request: pytest.FixtureRequest) -> None:
    assert [marker.args for marker in request.node.iter_markers("timeout")] == [(STUCK_SECONDS,)]
    assert not list(request.node.iter_markers("network"))


def test_slow_files_are_there_and_come_first_and_those_of_large_libraries_next() -> None:
    paths = [TESTS / name for name in (*SLOW_FILES, *LIBRARY_FILES)]
    assert all(path.exists() for path in paths)
    assert sorted([TESTS / "repo" / "test_x.py", Path("/x/test_x.py"), *paths], key=turn_of)[:-2] == paths
    assert sorted(reversed(paths), key=turn_of)[: len(SLOW_FILES)] == paths[: len(SLOW_FILES)]


def test_a_sample_keeps_every_case_and_marks_what_waits_for_the_night() -> None:
    cases = sampled(range(7), one_in=3)
    kept = [case for case in cases if isinstance(case, int)]
    later = [case for case in cases if not isinstance(case, int)]
    assert kept == [0, 3, 6]
    assert [case.values for case in later] == [(1,), (2,), (4,), (5,)]
    assert all([mark.name for mark in case.marks] == ["nightly"] for case in later)
    assert sampled([(1, "a"), (2, "b")], one_in=2)[1].values == (2, "b")


def test_of_like_cases_in_one_test_some_are_tried_by_day() -> None:
    before = settings.get_current_profile_name()
    tried = {}
    try:
        for tier in ("day", "night"):
            settings.load_profile(tier)
            tried[tier] = [*some(range(7), one_in=3)]
    finally:
        settings.load_profile(before)
    assert tried == {"day": [0, 3, 6], "night": [*range(7)]}


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("peer/cli/test_app.py", (True, False, True)),
        ("processes/peers/test_joining.py", (False, True, True)),
        ("processes/night/test_home_routers.py", (False, False, True)),
        ("benchmarks/test_convergence.py", (False, False, False)),
    ],
)
def test_files_that_cannot_be_chosen_are_not_imported(file: str, chosen: tuple[bool, ...]) -> None:
    tiers = ("not network and not nightly", "network and not nightly", "network or not nightly")
    assert tuple(may_be_chosen(TESTS / file, tier) for tier in tiers) == chosen
    assert may_be_chosen(TESTS / file, "of_another_marker")
