"""What the trainer's side of the network process makes of a child that ends badly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from peer.config.peer_config import PeerConfig
from peer.network.process.child_start import CHILD_ENVIRONMENT, OWNERS_SIGNALS, early_network_child
from peer.network.process.supervisor import NetworkProcess

CONFIG = PeerConfig(run_id="run.aaaaaaaaaaaaaaaaaaaa", data_dir="here")


def test_a_child_that_dies_with_orders_unread_has_ended_like_any_other():
    """A reset is not an end of file, but the thread that supervises must go on to the restart all the same."""
    notes: list[str] = []
    network = NetworkProcess(CONFIG, lambda event: None, notes.append)
    ours, theirs = socket.socketpair()
    ours.sendall(b"an order\n")
    theirs.sendall(b'{"kind": "addresses", "addresses": ["/ip4/127.0.0.1/tcp/1"]}\n')
    theirs.close()
    network._read_until_closed(ours)
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
    loaded = (
        "import peer.network.process.child_start, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "hivemind", "pydantic", "msgpack"} & set(names)


@pytest.mark.parametrize("entry", ["peer.network.process.main", "peer.join.seed"])
def test_a_process_that_trains_nothing_loads_no_torch(entry):
    """Most of a second of every join, and 190 MB of every peer, for nothing; nor what hivemind's DHT does not need."""
    program = f"""
import sys
import numpy
import {entry}
from dht.p2pd.lazy_hivemind import allow_parts_of_hivemind
allow_parts_of_hivemind()
import peer.network.process.network_side
from peer.config.model_shapes import layout_digest_of
from peer.config.manifest import RunManifest
from peer.config.averaging_rules import codec_of
manifest = RunManifest(name="x")
codec_of(manifest).encode(numpy.zeros(1000, dtype=numpy.float32))
layout_digest_of(manifest)
print(*sorted(sys.modules))
"""
    names = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "averaging.outer.outer_step" in names
    assert not {"torch", "scipy", "hivemind.averaging"} & set(names)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_child_has_no_threads_that_wait_for_linear_algebra():
    """numpy starts one for each core unless it is told otherwise, also where nothing of it is ever used."""
    program = "import numpy; print(next(line for line in open('/proc/self/status') if line.startswith('Threads')))"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", **CHILD_ENVIRONMENT}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.split() == ["Threads:", "1"]
