"""Ctrl+C while a large library is imported: the process ends, whatever the library makes of exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from peer.console.progress import loading


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_not_swallowed_by_what_is_loaded(number: signal.Signals) -> None:
    code = f"""
import signal
from peer.console.progress import loading
signal.signal({int(number)}, signal.default_int_handler)
with loading():
    try:
        signal.raise_signal({int(number)})
    except BaseException:
        pass
print("went on")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "peer: Interrupted.\n")


def test_what_is_ignored_stays_so_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with loading():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    with loading():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
