"""What stopped a network process is said before all that still runs in it is taken down."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from dht.ground.errors import DaemonFault, UsageFault
from peer.config.peer_config import PeerConfig
from peer.network.process import main, network_side


class Refused:
    """A network side that is stopped at once."""

    fault: Exception = UsageFault("the invite was used before")

    def __init__(self, *ports):
        pass

    async def run(self):
        raise self.fault


def last_words(monkeypatch, tmp_path, fault):
    monkeypatch.setattr(Refused, "fault", fault)
    monkeypatch.setattr(network_side, "NetworkSide", Refused)
    ours, theirs = socket.socketpair()
    config = PeerConfig(run_id="own." + "a" * 20, data_dir=tmp_path)
    ours.sendall(
        json.dumps({"kind": "config", "config": config.model_dump_json(exclude_defaults=True)}).encode() + b"\n"
    )
    told_to_end = []

    async def run():
        code = await main._run(theirs, told_to_end.append)
        # The event loop still runs here.
        ours.setblocking(False)
        return code, [json.loads(line) for line in ours.recv(65536).splitlines()]

    with ours, theirs:
        code, said = asyncio.run(run())
    assert told_to_end == [code]
    return code, said


@pytest.mark.parametrize(
    ("fault", "exit_code", "may_pass"),
    [(UsageFault("the invite was used before"), 2, False), (DaemonFault("the daemon is away"), 1, True)],
)
def test_a_fault_is_said_while_the_event_loop_still_runs(monkeypatch, tmp_path, fault, exit_code, may_pass):
    code, said = last_words(monkeypatch, tmp_path, fault)
    assert code == exit_code
    assert said == [{"kind": "fault", "message": str(fault), "exit_code": exit_code, "may_pass": may_pass}]
