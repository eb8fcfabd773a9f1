"""A start that fails leaves nothing running behind its sentence."""

from __future__ import annotations

import threading
import types

import pytest

from dht.errors import UsageFault
from peer.config.peer_config import PeerConfig
from peer.join import join
from peer.panel.terminal import Terminal


def test_what_is_being_loaded_is_waited_for(monkeypatch, tmp_path):
    """A thread that still imports when Python ends prints a traceback below the sentence."""
    may_end, loaded = threading.Event(), threading.Event()

    def load():
        may_end.wait(10)
        loaded.set()

    class Refused:
        identity = types.SimpleNamespace(peer_id="own")

        def __init__(self, *ports):
            pass

        def open(self, stop):
            threading.Timer(0.2, may_end.set).start()
            raise UsageFault("this is our own address")

        def abort(self):
            pass

    monkeypatch.setattr(join, "load_optimizers", load)
    monkeypatch.setattr(join, "RunConnection", Refused)
    config = PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path, device="cpu")
    terminal = Terminal(config)
    with terminal.interruptible(), pytest.raises(UsageFault, match="own address"):
        join.run_trainer(config, None, terminal)
    assert loaded.is_set()
