"""What is loaded beside the first dials ends with them."""

from __future__ import annotations

import sys
import threading

import pytest

from peer.join.early_loading import loading

NUM_MODULES = 40


@pytest.fixture
def slow_package(tmp_path, monkeypatch):
    """A package of modules that each import the next one, the first of which says that it is being run, and waits."""
    for number in range(NUM_MODULES):
        following = f"import slow_{number + 1}\n" if number + 1 < NUM_MODULES else ""
        (tmp_path / f"slow_{number}.py").write_text(f"import slow_turns\nslow_turns.take({number})\n{following}")
    turns = type(sys)("slow_turns")
    turns.began, turns.may_go_on, turns.taken = threading.Event(), threading.Event(), []

    def take(number):
        turns.taken.append(number)
        turns.began.set()
        turns.may_go_on.wait(10)

    turns.take = take
    monkeypatch.setitem(sys.modules, "slow_turns", turns)
    monkeypatch.syspath_prepend(tmp_path)
    yield turns
    for number in range(NUM_MODULES):
        sys.modules.pop(f"slow_{number}", None)


def load():
    __import__("slow_0")


def refused(turns):
    """As a join that hears while the first module is run that nothing comes of it."""
    with loading(load):
        assert turns.began.wait(10)
        threading.Timer(0.05, turns.may_go_on.set).start()
        raise ValueError("refused")


def test_when_nothing_comes_of_the_dials_nothing_more_is_loaded(slow_package, recwarn):
    finders = list(sys.meta_path)
    with pytest.raises(ValueError, match="refused"):
        refused(slow_package)
    assert slow_package.taken == [0]
    assert "early-loading" not in {thread.name for thread in threading.enumerate()}
    assert sys.meta_path == finders
    assert not recwarn.list


def test_what_was_loaded_stays_loaded_and_others_import_meanwhile(slow_package):
    slow_package.may_go_on.set()
    with loading(load):
        while len(slow_package.taken) < NUM_MODULES:
            assert slow_package.began.wait(10)
        import wave  # noqa: F401  # rarely loaded: in the thread of the caller nothing is held back
    assert slow_package.taken == list(range(NUM_MODULES))
    __import__(f"slow_{NUM_MODULES - 1}")
