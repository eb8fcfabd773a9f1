"""Bad input to real `peer` processes: one clear sentence and the right exit code, or a refusal and life goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest

from averaging.lanes.links import ROUND_PROTOCOL
from averaging.rounds.round_facts import RoundCommitted
from averaging.transfer.messages import STATE_PROTOCOL
from averaging.wire import frames
from dht.admission.handshake_frames import PROTOCOL_VERSION, make_refusal
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.events.peer_events import CheckpointFailed, CheckpointSaved, LeftRun, RefusedPeer, TrainingProgressed
from peer.network.membership.membership import RECORD_PROTOCOL
from peer.network.membership.run_protocol import RUN_PROTOCOL
from tests.kit.processes.hostile_member import answering, hostile_member
from tests.kit.processes.process_swarm import (
    WAIT_SECONDS,
    PeerProcess,
    ProcessSwarm,
    assert_one_sentence,
    free_port,
    wait_until,
)

OTHER_VERSION = PROTOCOL_VERSION + 1


def assert_unharmed(first: PeerProcess, second: PeerProcess) -> None:
    """Both go on together, and neither has shown a traceback."""
    marks = first.mark(), second.mark()
    first.wait_common_round(second.peer_id, after=marks[0])
    second.wait_common_round(first.peer_id, after=marks[1])
    assert "Traceback" not in first.stderr + second.stderr


# ------------------------------------------------------------------------------------ what the owner did wrong


@dataclass(frozen=True, slots=True)
class WrongStart:
    """A `peer join` that must end with this exit code and these words (regular expressions) in its one sentence."""

    exit_code: int
    words: tuple[str, ...]
    arguments: Callable[[ProcessSwarm, PeerProcess], tuple[str, ...]]


def alone(swarm: ProcessSwarm, name: str) -> dict[str, str]:
    """An environment in which no folder of another peer says where that is, as on a machine of its own."""
    return {"XDG_DATA_HOME": str(swarm.folder / "elsewhere" / name)}


def _taken_port(swarm: ProcessSwarm, first: PeerProcess) -> tuple[str, ...]:
    return ("--peers", first.address, "--listen", f"/ip4/127.0.0.1/tcp/{first.port}")


def _dead_address(swarm: ProcessSwarm, first: PeerProcess) -> tuple[str, ...]:
    return ("--join-timeout", "3", "--peers", f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{first.peer_id}")


def _wrong_peer_id(swarm: ProcessSwarm, first: PeerProcess) -> tuple[str, ...]:
    return ("--join-timeout", "3", "--peers", first.address.replace(first.peer_id, Identity.generate().peer_id))


def _other_run(swarm: ProcessSwarm, first: PeerProcess) -> tuple[str, ...]:
    other = make_run_id("tiny", Identity.generate().public_key)
    return ("--join-timeout", "3", "--peers", first.address, "--run-id", other)


def _tampered_record(swarm: ProcessSwarm, first: PeerProcess) -> tuple[str, ...]:
    swarm.identity_of("tampered record")
    (swarm.folder_of("tampered record") / "run.record").write_bytes(tampered_record(swarm))
    return ()


def tampered_record(swarm: ProcessSwarm) -> bytes:
    """The run's record with one changed number in its manifest."""
    record = swarm.run.run_record_path.read_bytes()
    assert b'"sync_every":10' in record
    return record.replace(b'"sync_every":10', b'"sync_every":99')


WRONG_STARTS = {
    "port that is taken": WrongStart(1, ("in use", "free port", "--listen"), _taken_port),
    "dead address": WrongStart(3, (r"No member .*answered", "expected one live member", "check"), _dead_address),
    "another PeerId at the address": WrongStart(
        3, ("nother peer answers at", "expected the PeerId", "ask who gave it"), _wrong_peer_id
    ),
    "run that members do not know": WrongStart(
        2, ("members there train tiny", "did you mean", "Check the run id"), _other_run
    ),
    "tampered record": WrongStart(
        4, ("run.record", "signature", "signed by the run's owner", "--peers"), _tampered_record
    ),
}


@pytest.mark.parametrize("name", WRONG_STARTS)
def test_a_wrong_start_ends_with_one_sentence(swarm: ProcessSwarm, first: PeerProcess, name: str) -> None:
    expected = WRONG_STARTS[name]
    before = swarm.process_ids()
    given = ("join", "--run-id", swarm.run_id, "--data-dir", str(swarm.folder_of(name)), "--device", "cpu")
    given += ("--data", f"text:{swarm.text}", "--listen", f"/ip4/127.0.0.1/tcp/{free_port()}")
    ended = swarm.call(*given, *expected.arguments(swarm, first), environment=alone(swarm, name))
    assert ended.returncode == expected.exit_code, ended.stderr
    assert_one_sentence(ended.stderr, *expected.words)
    assert swarm.process_ids() <= before


# ----------------------------------------------------------------------------------- what other members do wrong


def test_members_that_mislead_a_joiner(swarm: ProcessSwarm) -> None:
    """One serves another owner's record, one a changed manifest, one is of another version and refuses."""
    stranger = Identity.generate()
    manifest = swarm.run.manifest.to_bytes()
    false_record = encode_run_record(sign_run_record(make_run_id("tiny", stranger.public_key), manifest, stranger))

    async def lure(name: str, served: bytes) -> None:
        async with hostile_member(swarm) as member:
            member.host.handle(RUN_PROTOCOL, answering(served))
            flags = ("--join-timeout", "3")
            peer = swarm.start(name, *flags, command="seed", peers=[member.address], environment=alone(swarm, name))
            assert await asyncio.to_thread(peer.wait_end) == 4
            assert_one_sentence(peer.stderr, "o valid record", "expected a record signed by the run's owner", "ask")
            assert not (swarm.folder_of(name) / "run.record").exists()

    async def refuse() -> None:
        async with hostile_member(swarm) as member:
            member.host.handle(RUN_PROTOCOL, answering(swarm.run.run_record_path.read_bytes()))
            reason = f"got protocol version {PROTOCOL_VERSION}; expected {OTHER_VERSION}; update"
            for protocol in (RECORD_PROTOCOL, STATE_PROTOCOL, ROUND_PROTOCOL):
                member.host.handle(protocol, answering(make_refusal(reason)))
            await member.announce()
            peer = swarm.start("old-software", peers=[member.address], environment=alone(swarm, "old-software"))
            # It must not train on alone: nobody would ever take its work.
            assert await asyncio.to_thread(peer.wait_end) == 4
            assert_one_sentence(peer.stderr, "refused this peer", f"expected {OTHER_VERSION}", "install")

    async def all_at_once() -> None:
        false, tampered = lure("false-record", false_record), lure("false-manifest", tampered_record(swarm))
        await asyncio.gather(false, tampered, refuse())

    asyncio.run(all_at_once())


def test_strangers_and_garbage_are_refused_and_harm_nobody(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    """Every stream gets something wrong, each from an identity of its own; the first peer says what it refused."""

    def refusal(of: Identity, after: int, *words: str) -> None:
        event = first.wait_for(RefusedPeer, lambda event: event.remote == of.peer_id, after=after)
        for word in words:
            assert word in event.reason, event.reason

    async def attack() -> None:
        mark = first.mark()
        for protocol in (ROUND_PROTOCOL, RECORD_PROTOCOL):
            async with hostile_member(swarm, first.address) as member:
                _, reply = await member.open(
                    first.peer_id, protocol, member.changed_hello(protocol_version=OTHER_VERSION)
                )
                answer = msgpack.unpackb(reply)
                assert f"protocol version {OTHER_VERSION}" in answer["refused"]
                assert f"expected {PROTOCOL_VERSION}" in answer["refused"]
                refusal(member.identity, mark, f"protocol version {OTHER_VERSION}", "update")
        async with hostile_member(swarm, first.address) as member:
            hello = member.changed_hello(manifest_hash=bytes(32))
            for protocol in (STATE_PROTOCOL, ROUND_PROTOCOL):
                _, reply = await member.open(first.peer_id, protocol, hello)
                assert "manifest" in msgpack.unpackb(reply)["refused"]
            refusal(member.identity, mark, "manifest", "expected")
        async with hostile_member(swarm, first.address) as member:
            _, reply = await member.open(first.peer_id, ROUND_PROTOCOL, os.urandom(200))
            assert msgpack.unpackb(reply)["refused"]
            refusal(member.identity, mark)
        for frame, word in (
            (b"\xff" + os.urandom(299), "wire version"),
            (bytes([frames.WIRE_VERSION, 0, 0, 0, 5]) + b"hello", ""),
            (bytes([frames.WIRE_VERSION, 0, 255, 255, 255]) + bytes(100), "header"),
        ):
            async with hostile_member(swarm, first.address) as member:
                stream, reply = await member.open(first.peer_id, ROUND_PROTOCOL)
                assert msgpack.unpackb(reply)["refused"] is None
                await stream.send(b"\x01" + frame[1:] if word == "wire version" else frame)
                await member.wait_closed(stream)
                refusal(member.identity, mark, word)
        async with hostile_member(swarm, first.address) as member:
            stream, _ = await member.open(first.peer_id, ROUND_PROTOCOL)
            await member.send_raw(stream, b"\xff\xff\xff\xff" + bytes(1000))
            await member.wait_closed(stream)
            refusal(member.identity, mark, "4294967295 bytes", "expected at most")
            # Cut off in the middle of a frame, on every protocol; and said nothing at all.
            for protocol in (ROUND_PROTOCOL, RECORD_PROTOCOL, STATE_PROTOCOL):
                stream, _ = await member.open(first.peer_id, protocol)
                await member.send_raw(stream, b"\x00\x00\x01\x00" + bytes(10))
                await stream.close()
                await (await member.open_silent(first.peer_id, protocol)).close()
            for protocol in (RECORD_PROTOCOL, STATE_PROTOCOL, RUN_PROTOCOL):
                stream = await member.open_silent(first.peer_id, protocol)
                await member.send_raw(stream, b"\xff\xff\xff\xff" + os.urandom(100))
                await member.wait_closed(stream)
            for protocol in (RECORD_PROTOCOL, STATE_PROTOCOL):
                stream, _ = await member.open(first.peer_id, protocol)
                await stream.send(os.urandom(100))
                await member.wait_closed(stream)

    asyncio.run(attack())
    assert_unharmed(first, second)


def test_a_hostile_process_is_a_burden_and_no_more(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    """Floods, huge frames, slow reads and garbage from a process of its own: rounds go on, and memory stays."""
    mark, daemon, before = first.mark(), first.daemon(), first.network().resident_bytes
    command = [sys.executable, "-m", "tests.kit.processes.hostile_process", str(swarm.run.run_record_path)]
    with subprocess.Popen([*command, swarm.run_id, first.address], stdout=subprocess.PIPE, text=True) as hostile:
        try:
            assert hostile.stdout is not None
            said = json.loads(hostile.stdout.readline())
            assert min(said["done"].values()) >= 20
            for _ in range(3):
                first.wait_common_round(second.peer_id, after=first.mark())
            grown = first.network().resident_bytes - before
        finally:
            hostile.kill()
    assert grown < 100 << 20
    first.wait_for(RefusedPeer, lambda event: event.remote == said["peer_id"], after=mark)
    assert first.daemon().pid == daemon.pid
    assert_unharmed(first, second)


def test_contributions_that_are_no_numbers_are_left_out(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    marks = first.mark(), second.mark()

    async def pollute() -> None:
        async with hostile_member(swarm, first.address, second.address) as member:

            def is_refused() -> bool:
                new = first.events()[marks[0] :] + second.events()[marks[1] :]
                refused = [
                    e for e in new if isinstance(e.fact, RefusedPeer) and e.fact.remote == member.identity.peer_id
                ]
                return any("not numbers" in event.fact.reason for event in refused)

            async with asyncio.timeout(WAIT_SECONDS):
                await member.contribute_nonsense(first.peer_id, is_refused)

    asyncio.run(pollute())
    assert_unharmed(first, second)
    for peer in (first, second):
        mark = peer.mark()
        progress = peer.wait_for(TrainingProgressed, after=mark)
        assert progress.train_loss is not None
        assert progress.train_loss < 7


def test_of_two_peers_with_one_identity_the_later_one_stops(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    key = swarm.folder_of("first") / "identity.key"
    twin = swarm.start("twin", "--identity", str(key), command="seed", peers=[second.address])
    assert twin.wait_end() == 1
    assert_one_sentence(twin.stderr, "nother running process", "one process per identity", "--identity")
    assert not (twin.family())
    assert first.is_alive
    assert_unharmed(first, second)


# ------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def tiny_disk(swarm: ProcessSwarm) -> Iterator[Path]:
    folder = swarm.folder / "full"
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_costs_one_warning_and_no_training(swarm: ProcessSwarm, tiny_disk: Path) -> None:
    peer = swarm.start("full", "--checkpoint-minutes", "0.05", has_record=True, output=swarm.folder / "full-output")
    peer.wait_joined()
    peer.wait_for(CheckpointSaved)
    with contextlib.suppress(OSError), open(tiny_disk / "ballast", "wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    wait_until(lambda: "cannot be written" in peer.stderr, "the log notices")
    mark = peer.mark()
    steps = peer.inner_steps()
    peer.wait_for(CheckpointFailed)
    peer.wait_for(TrainingProgressed, lambda event: event.inner_steps > steps, after=mark)
    peer.wait_for(RoundCommitted, after=mark)
    assert peer.stderr.count("cannot be written") == 1
    (tiny_disk / "ballast").unlink()
    wait_until(lambda: "can be written again" in peer.stderr, "the log goes on")
    peer.wait_for(CheckpointSaved, after=mark)
    peer.process.send_signal(signal.SIGINT)
    assert peer.wait_end() == 0
    assert isinstance(peer.events()[-1].fact, LeftRun)
    assert "Traceback" not in peer.stderr
