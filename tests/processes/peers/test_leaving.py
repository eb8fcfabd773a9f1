"""How real `peer` processes end, whoever asks and however early: politely, within seconds, with nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from averaging.rounds.round_facts import RoundCommitted
from dht.identity.keys import Identity
from peer.events.peer_events import LeftRun
from peer.network.process.supervisor import STOP_SECONDS as LONGEST_LEAVE_SECONDS
from tests.kit.processes.process_swarm import (
    DEAF,
    TINY_RUN,
    WAIT_SECONDS,
    PeerProcess,
    ProcessSwarm,
    process_swarm,
    wait_until,
)
from tests.kit.trainer.prepared_data import sentences, small_tokenizer


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address on this machine, less the PeerId, where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/"


def assert_left_politely(swarm: ProcessSwarm, peer: PeerProcess, family: set[int]) -> None:
    assert peer.wait_end() == 0, peer.stderr
    wait_until(lambda: not family & swarm.process_ids(), "its processes end")
    assert isinstance(peer.events()[-1].fact, LeftRun)
    assert "Traceback" not in peer.stderr


def ids_of(peer: PeerProcess) -> set[int]:
    return {process.pid for process in peer.family()}


def test_a_peer_that_is_still_dialling_leaves_when_asked(
    swarm: ProcessSwarm, first: PeerProcess, black_hole: str
) -> None:
    directories = set(swarm.socket_directories())
    peer = swarm.start("dialling", peers=[f"{black_hole}{first.peer_id}"])
    wait_until(lambda: "Listening on" in peer.stderr, "it is up")
    family = ids_of(peer)
    peer.process.send_signal(signal.SIGINT)
    assert peer.wait_end() == 130
    assert not family & swarm.process_ids()
    assert set(swarm.socket_directories()) <= directories


def test_a_peer_that_tokenizes_its_first_text_leaves_when_asked(tmp_path: Path) -> None:
    """It takes minutes, and nobody waits for it: neither does the peer, nor its network process."""
    tokenizer = small_tokenizer(tmp_path).path.read_bytes()
    run = TINY_RUN.replace("[model]", "[model]\nvocab_size = 300")
    with process_swarm(run, partial(ProcessSwarm, files={"tokenizer.json": tokenizer})) as tokenizing:
        tokenizing.text.write_text("".join(f"{text}\n" for text in sentences(2000)) * 60)
        peer = tokenizing.start("reader", has_record=True)
        wait_until(lambda: "okenizing the beginning" in peer.stderr, "it tokenizes")
        peer.process.send_signal(signal.SIGTERM)
        # A network process that waited for its mailbox was killed after all of that time.
        assert peer.wait_end(LONGEST_LEAVE_SECONDS - 2) == 130, peer.stderr
        assert "left before training began" in peer.stderr.lower()
        assert (tokenizing.processes(), tokenizing.socket_directories()) == ([], [])


def test_a_look_from_outside_ends_by_sigterm_and_takes_its_sockets_along(swarm: ProcessSwarm, black_hole: str) -> None:
    directories = set(swarm.socket_directories())
    target = ["--run-id", swarm.run_id, "--peers", f"{black_hole}{Identity.generate().peer_id}"]
    look = subprocess.Popen(
        [sys.executable, "-m", "peer", "status", *target, "--timeout", "120", "--host-backend", "p2pd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=swarm.environment,
    )
    wait_until(lambda: set(swarm.socket_directories()) > directories, "its daemon starts")
    look.send_signal(signal.SIGTERM)
    try:
        _, errors = look.communicate(timeout=WAIT_SECONDS)
    finally:
        look.kill()
    assert (look.returncode, errors) == (130, "peer: Interrupted.\n")
    assert set(swarm.socket_directories()) <= directories


def test_a_background_job_is_deaf_to_the_terminal_and_to_no_service_manager(
    swarm: ProcessSwarm, first: PeerProcess
) -> None:
    directories = set(swarm.socket_directories())
    peer = swarm.start("background", peers=[first.address], wrapper=DEAF)
    peer.wait_joined()
    family = ids_of(peer)
    assert len(family) == 3
    os.killpg(peer.process.pid, signal.SIGINT)
    os.killpg(peer.process.pid, signal.SIGHUP)
    peer.wait_for(RoundCommitted, after=peer.mark())
    assert "leaving" not in peer.stderr.lower()
    # To every process at once.
    peer.signal_all(signal.SIGTERM)
    assert_left_politely(swarm, peer, family)
    assert set(swarm.socket_directories()) <= directories


def test_the_first_process_of_a_container_leaves_by_sigterm(swarm: ProcessSwarm, first: PeerProcess) -> None:
    """As process 1 it gets only signals that it handles, and what it has started ends with it."""
    allowed = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no process namespace can be made here: {allowed.stderr.decode().strip()}")
    peer = swarm.start("container", peers=[first.address], wrapper=("unshare", "--pid", "--fork"))
    peer.wait_joined()
    peer.wait_for(RoundCommitted)
    family = ids_of(peer)
    inside = next(process for process in peer.family() if process.parent == peer.process.pid)
    os.kill(inside.pid, signal.SIGTERM)
    assert_left_politely(swarm, peer, family)
