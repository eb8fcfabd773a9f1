"""A network process that dies is started again: at its start too, after a growing pause, so often in an hour."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.ground.errors import DaemonFault, LocalFault, NobodyReachable
from peer.config.peer_config import PeerConfig
from peer.events.peer_events import PartRestarted
from peer.network.process import main
from peer.network.process.child_start import NetworkChild
from peer.network.process.supervisor import (
    CALM_SECONDS,
    MAX_RESTARTS,
    MAX_RESTARTS_AT_START,
    WINDOW_SECONDS,
    NetworkProcess,
    Restarts,
)

CONFIG = PeerConfig(run_id="run.aaaaaaaaaaaaaaaaaaaa", data_dir="here")


@given(st.lists(st.floats(0, 2 * CALM_SECONDS), max_size=100))
def test_no_window_sees_more_restarts_than_allowed(gaps):
    restarts, now, allowed = Restarts(), 0.0, []
    for gap in gaps:
        now += gap
        if restarts.pause_seconds(now, has_begun=True) is not None:
            allowed.append(now)
    assert all(sum(at <= other < at + WINDOW_SECONDS for other in allowed) <= MAX_RESTARTS for at in allowed)


class Children:
    """In place of network processes: each runs a few lines with its end of the socket pair as `channel`."""

    def __init__(self, monkeypatch, programs):
        self.programs = list(programs)
        self.num_started = 0
        monkeypatch.setattr("peer.network.process.supervisor.start_network_child", self.start)
        monkeypatch.setattr("peer.network.process.supervisor.FIRST_PAUSE_SECONDS", 1e-3)

    def start(self):
        import socket

        self.num_started += 1
        ours, theirs = socket.socketpair()
        head = f"import json, os, signal, socket\nchannel = socket.socket(fileno={theirs.fileno()})\n"
        program = head + self.programs.pop(0)
        process = subprocess.Popen([sys.executable, "-c", program], pass_fds=(theirs.fileno(),))
        theirs.close()
        return NetworkChild(process, ours)


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
CRASHED = "os._exit(1)"


def said(message):
    return f"channel.sendall(json.dumps({message!r}).encode() + b'\\n')\n"


def fault_of(message, exit_code=1, **more):
    return said({"kind": "fault", "message": message, "exit_code": exit_code, **more}) + CRASHED


def ended(network):
    assert network._ended.wait(60)
    return network._fault


@pytest.mark.parametrize("death", [KILLED, CRASHED, fault_of("the daemon is gone", may_pass=True)])
def test_a_death_before_the_run_was_found_is_no_end(monkeypatch, death):
    found = said({"kind": "fault", "message": "this one got as far as it was let", "exit_code": 3})
    children = Children(monkeypatch, [death, death, found])
    events = []
    network = NetworkProcess(CONFIG, events.append, lambda sentence: None)
    network.start()
    assert isinstance(ended(network), NobodyReachable)
    assert children.num_started == 3
    assert [type(event.fact) for event in events] == [PartRestarted, PartRestarted]


def test_a_daemon_that_never_comes_up_ends_it_with_the_daemons_own_sentence(monkeypatch):
    children = Children(monkeypatch, [fault_of("the daemon ended at once: it went wrong", may_pass=True)] * 9)
    network = NetworkProcess(CONFIG, lambda event: None, lambda sentence: None)
    network.start()
    assert str(ended(network)) == "the daemon ended at once: it went wrong"
    assert children.num_started == 1 + MAX_RESTARTS_AT_START
    with pytest.raises(LocalFault, match="it went wrong"):
        network.wait_for_run(lambda: False)


def test_who_leaves_while_a_dead_child_waits_to_be_started_has_left(monkeypatch):
    children = Children(monkeypatch, [KILLED])
    monkeypatch.setattr("peer.network.process.supervisor.FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr("peer.network.process.supervisor.LONGEST_PAUSE_SECONDS", 3600.0)
    has_died = threading.Event()
    network = NetworkProcess(CONFIG, lambda event: has_died.set(), lambda sentence: None)
    network.start()
    assert has_died.wait(60)
    network.leave("asked to stop")
    network.close()
    assert children.num_started == 1
    network.check()


@pytest.mark.parametrize(("error", "may_pass"), [(DaemonFault("gone"), True), (LocalFault("taken"), False)])
def test_the_child_says_whether_its_fault_may_pass(monkeypatch, error, may_pass):
    import socket

    ours, theirs = socket.socketpair()

    async def take_part(channel, end_soon):
        raise error

    monkeypatch.setattr(main, "_take_part", take_part)
    monkeypatch.setattr(main, "_end_soon", lambda code: None)
    monkeypatch.setattr(sys, "argv", ["network_process", str(os.dup(theirs.fileno()))])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(main, "make_plain", lambda stream: stream)
    assert main.main() == 1
    line = json.loads(ours.makefile("rb").readline())
    assert (line["message"], line["may_pass"]) == (str(error), may_pass)
    ours.close()
    theirs.close()
