"""What the trainer's side of the network process makes of a child that ends badly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

from peer.network_child import OWNERS_SIGNALS, early_network_child
from peer.network_spec import NetworkSpec
from peer.supervisor import NetworkProcess

SPEC = NetworkSpec("run.id", "trainer", (), "", "", (), (), 1.0, "", 1.0, 1, None, None)


def test_a_child_that_dies_with_orders_unread_has_ended_like_any_other():
    """A reset is not an end of file, but the thread that supervises must go on to the restart all the same."""
    notes: list[str] = []
    network = NetworkProcess(SPEC, lambda event: None, notes.append)
    ours, theirs = socket.socketpair()
    network._connection = ours
    ours.sendall(b"an order\n")
    theirs.sendall(b'{"kind": "addresses", "addresses": ["/ip4/127.0.0.1/tcp/1"]}\n')
    theirs.close()
    network._read_until_closed()
    assert network.addresses in ((), ("/ip4/127.0.0.1/tcp/1",))
    ours.close()


def test_a_child_that_nobody_took_is_ended():
    with early_network_child() as child:
        assert child.process.poll() is None
    assert child.process.returncode == -signal.SIGKILL


def test_a_child_is_deaf_to_its_owners_signals_from_its_first_moment_and_takes_its_orders_all_the_same():
    """Ctrl+C in the first second reaches both; the trainer's process decides, and the child prints no traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with early_network_child() as child:
        for number in OWNERS_SIGNALS:
            os.kill(child.process.pid, number)
        child.take()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert child.process.poll() is None
    child.connection.close()
    assert child.process.wait(60) == 0, "it did not end when its trainer's process had gone"


def test_starting_the_child_loads_nothing_that_takes_long():
    loaded = "import peer.network_child, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "hivemind", "pydantic", "msgpack"} & set(names)


def test_the_network_side_loads_no_compiler():
    """A second of every join, and 70 MB of every peer, for nothing (`peer.model.parameter_shapes`)."""
    program = """
import sys
from dht.hivemind_parts import allow_parts_of_hivemind
allow_parts_of_hivemind()
import torch, peer.network_process, peer.network_side
from peer.layouts import layout_digest_of
from peer.manifest import RunManifest
from peer.run_rules import codec_of
manifest = RunManifest(name="x")
codec_of(manifest).encode(torch.zeros(1000))
layout_digest_of(manifest)
print(*sorted(sys.modules))
"""
    names = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "averaging.outer" in names
    assert not {"torch._dynamo", "sympy", "scipy.optimize", "hivemind.averaging"} & set(names)
