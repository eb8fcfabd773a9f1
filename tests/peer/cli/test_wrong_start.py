"""A start that fails leaves nothing running behind its sentence."""

from __future__ import annotations

import subprocess
import sys
import threading
import types

import pytest

from dht.ground.errors import UsageFault
from peer.config.peer_config import PeerConfig
from peer.join import join
from peer.panel.terminal import Terminal
from peer.process_setup import EARLY_LOADING

ENDING = """
import atexit, threading
import peer.__main__ as entry, peer.cli.app
from peer.process_setup import EARLY_LOADING
def run(words):
    if {is_loading}:
        threading.Thread(target=threading.Event().wait, name=EARLY_LOADING, daemon=True).start()
    print("a sentence")
    return 2
peer.cli.app.run = run
atexit.register(print, "Python cleans up")
entry.main()
"""


@pytest.mark.parametrize("is_loading", [True, False])
def test_a_command_that_still_loads_something_ends_at_once(is_loading):
    """A thread that still imports while Python cleans up prints a traceback below the sentence."""
    command = [sys.executable, "-c", ENDING.format(is_loading=is_loading)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said = "a sentence\n" if is_loading else "a sentence\nPython cleans up\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, said, "")


def test_what_is_loaded_beside_the_first_dials_is_known_by_its_name(monkeypatch, tmp_path):
    may_end = threading.Event()

    class Refused:
        identity = types.SimpleNamespace(peer_id="own")

        def __init__(self, *ports):
            pass

        def open(self, stop):
            raise UsageFault("this is this peer's own address")

        def abort(self):
            pass

    monkeypatch.setattr(join, "load_optimizers", lambda: may_end.wait(60))
    monkeypatch.setattr(join, "RunConnection", Refused)
    config = PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path, device="cpu")
    terminal = Terminal(config)
    with terminal.interruptible(), pytest.raises(UsageFault, match="own address"):
        join.run_trainer(config, None, terminal)
    assert EARLY_LOADING in {thread.name for thread in threading.enumerate()}
    may_end.set()
