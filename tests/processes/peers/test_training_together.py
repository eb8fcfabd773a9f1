"""Real `peer` processes on loopback: they find each other, train together, are killed, come late, and leave."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from averaging.rounds.round_facts import RoundCommitted, RoundStarted
from averaging.signing.receipt_file import open_receipt
from averaging.wire.frames import decode
from averaging.wire.messages import Commit
from dashboard.collect.commit_fetcher import proof_line
from dht.ground.host import PeerId
from dht.identity.speakable import speakable_name
from dht.records.signed_manifest import decode_run_record
from peer.events.anchor_events import Fetched
from peer.events.peer_events import CheckpointSaved, LeftRun, MemberChanged, PartRestarted, TrainingProgressed
from peer.files.checked_folder import checked_folder
from peer.observe.observer import observe, open_log
from tests.kit.processes.process_swarm import (
    WAIT_SECONDS,
    PeerProcess,
    ProcessSwarm,
    assert_one_sentence,
    free_port,
    process_swarm,
    wait_until,
)

OFTEN = ("--checkpoint-minutes", "0.05")
RARELY = ("--checkpoint-minutes", "1000")


@pytest.fixture(scope="module")
def second(swarm: ProcessSwarm, first: PeerProcess) -> PeerProcess:
    peer = swarm.start("second", *OFTEN, peers=[first.address])
    peer.wait_joined()
    return peer


def common_outcomes(one: PeerProcess, other: PeerProcess, members: set[PeerId]) -> list[tuple[int, str, str]]:
    """(fragment, digest, digest) after every round of at least `members` that both saw committed."""
    ours, theirs = one.outcomes(), other.outcomes()
    both = [key for key in ours.keys() & theirs.keys() if members <= set(key[2])]
    return [(key[0], ours[key], theirs[key]) for key in both]


def wait_same_anchors(one: PeerProcess, other: PeerProcess) -> None:
    """Rounds with both of them left the same anchor on both, in every fragment."""
    members = {one.peer_id, other.peer_id}
    wait_until(
        lambda: {fragment for fragment, _, _ in common_outcomes(one, other, members)} == {0, 1},
        "common rounds of both fragments",
    )
    assert [outcome for outcome in common_outcomes(one, other, members) if outcome[1] != outcome[2]] == []


def test_a_run_id_and_one_address_are_enough_to_train_together(first: PeerProcess, second: PeerProcess) -> None:
    first.wait_for(MemberChanged, lambda event: event.has_joined and event.remote == second.peer_id)
    first.wait_common_round(second.peer_id, after=0)
    commit = second.wait_common_round(first.peer_id, after=0)
    assert commit.tokens > 0
    for peer in (first, second):
        mark = peer.mark()
        for fragment in (0, 1):
            peer.wait_for(RoundCommitted, lambda event, wanted=fragment: event.fragment == wanted, after=mark)  # type: ignore[misc]
    wait_same_anchors(first, second)


def kill_as_soon_as_it_is_there(peer: PeerProcess, command: str) -> None:
    """Kill a process of this peer that has just started: the peer joins all the same."""

    def victims() -> list[int]:
        return [process.pid for process in peer.family() if command in process.command]

    wait_until(lambda: bool(victims()), f"{command} starts")
    os.kill(victims()[0], signal.SIGKILL)


def test_a_late_joiner_catches_up_from_any_member_and_contributes(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    late = swarm.start("late", "--max-steps", "1000000", peers=[second.address])
    kill_as_soon_as_it_is_there(late, "/p2pd")
    caught_up = late.wait_for(Fetched, lambda fact: bool(fact.fragments))
    assert caught_up.fragments == (0, 1)
    assert caught_up.donors[0] in (first.peer_id, second.peer_id)
    joined = late.wait_joined()
    assert min(joined.versions) > 0
    mark = first.mark()
    late.wait_common_round(first.peer_id, second.peer_id, after=0)
    first.wait_common_round(late.peer_id, after=mark)
    wait_same_anchors(late, first)
    # The whole peer is gone at once, as in a power cut: nobody says goodbye, and the others go on.
    marks = first.mark(), second.mark()
    late.kill_all()
    first.wait_for(MemberChanged, lambda event: bool(event.reason) and event.remote == late.peer_id, after=marks[0])
    after = first.mark(), second.mark()
    first.wait_common_round(second.peer_id, after=after[0])
    second.wait_common_round(first.peer_id, after=after[1])
    wait_same_anchors(first, second)


def test_status_shows_the_run_and_is_not_counted(swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess) -> None:
    mark = first.mark()
    target = ("status", "--run-id", swarm.run_id, "--peers")
    shown = swarm.call(*target, second.address, "--json", "--host-backend", "p2pd")
    assert (shown.returncode, shown.stderr) == (0, "")
    facts = json.loads(shown.stdout)
    assert facts["run_id"] == swarm.run_id
    assert facts["manifest_hash"] == swarm.run.manifest.hash.hex()
    trainers = {peer["peer_id"] for peer in facts["peers"] if peer["role"] == "trainer" and peer["state"] == "training"}
    # A killed peer's record lives on for a few seconds; nobody else may be there.
    assert {first.peer_id, second.peer_id} <= trainers <= {peer.peer_id for peer in swarm.peers}
    # Those with work in signed commits.
    assert 2 <= facts["num_training"] <= len(trainers)
    assert min(facts["versions"]) > 0
    assert facts["tokens_reported"] > 0
    # Without a daemon, where py-libp2p could be installed.
    other = "libp2p" if importlib.util.find_spec("libp2p") else "p2pd"
    table = swarm.call(*target, first.address, "--host-backend", other)
    assert (table.returncode, table.stderr) == (0, "")
    assert speakable_name(first.peer_id) in table.stdout
    assert speakable_name(second.peer_id) in table.stdout
    first.wait_common_round(second.peer_id, after=mark)
    seen = {
        event.fact.remote
        for event in first.events()[mark:]
        if isinstance(event.fact, MemberChanged) and event.fact.has_joined
    }
    assert seen <= {peer.peer_id for peer in swarm.peers}


async def _receipts_of(run_id: str, peer: PeerProcess) -> list[bytes]:
    """All that one member remembers of fragment 0, read page by page."""
    async with observe(run_id, [peer.address], WAIT_SECONDS) as observer:
        encoded = await observer.store.fetch_run(run_id)
        assert encoded is not None
        fetch = open_log(observer.host, decode_run_record(encoded, run_id=run_id))
        found: list[bytes] = []
        at = 0
        while page := await fetch(peer.peer_id, 0, at):
            found += page
            run, frame = open_receipt(run_id, page[-1])
            newest, _ = decode(frame, peer.peer_id, run.limits)
            assert isinstance(newest, Commit)
            at = newest.version + 1
    return found


def test_what_two_peers_signed_is_proof_to_anybody_until_a_byte_of_it_is_changed(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess, tmp_path: Path
) -> None:
    # The leader of a round signs for the work of the others in it.
    for leader in (first.peer_id, second.peer_id):
        led = first.wait_for(
            RoundStarted,
            lambda fact, leader=leader: (fact.fragment, fact.leader, fact.num_contributors) == (0, leader, 2),  # type: ignore[misc]
        )
        first.wait_for(
            RoundCommitted,
            lambda fact, version=led.version: fact.fragment == 0 and fact.version > version,  # type: ignore[misc]
        )
    receipts = asyncio.run(_receipts_of(swarm.run_id, first))
    lines = [proof_line(swarm.run_id, receipt) for receipt in receipts]
    proof = tmp_path / "proof.jsonl"
    proof.write_text("\n".join(lines) + "\n")
    checked = swarm.call("receipts", "verify", str(proof), "--run-id", swarm.run_id, "--json")
    assert (checked.returncode, checked.stderr) == (0, "")
    facts = json.loads(checked.stdout)
    assert facts["receipts"] == len(receipts) == facts["rounds_counted"]
    credit = {machine["peer_id"]: machine for machine in facts["machines"]}
    for peer in (first, second):
        assert 0 < credit[peer.peer_id]["tokens_witnessed"] <= credit[peer.peer_id]["tokens_reported"]
    place = lines[-1].rindex('"commit":"') + 200
    other = "A" if lines[-1][place] != "A" else "B"
    proof.write_text("\n".join([*lines[:-1], lines[-1][:place] + other + lines[-1][place + 1 :]]))
    refused = swarm.call("receipts", "verify", str(proof))
    assert refused.returncode == 1
    assert_one_sentence(refused.stderr, f"line {len(lines)}:")


def test_a_killed_daemon_is_back_within_seconds_with_the_same_identity(first: PeerProcess, second: PeerProcess) -> None:
    mark, mark_first = second.mark(), first.mark()
    steps = second.inner_steps()
    old = second.daemon()
    os.kill(old.pid, signal.SIGKILL)
    restarted = second.wait_for(PartRestarted, lambda fact: fact.part == "daemon", after=mark)
    assert restarted.seconds < 10
    assert second.daemon().pid != old.pid
    back = second.mark()
    second.wait_common_round(first.peer_id, after=back)
    first.wait_common_round(second.peer_id, after=mark_first)
    assert second.inner_steps() > steps
    wait_same_anchors(first, second)


def test_a_killed_network_process_is_started_again_and_training_goes_on(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    mark = second.mark()
    steps = second.inner_steps()
    old_network, old_daemon = second.network(), second.daemon()
    os.kill(old_network.pid, signal.SIGKILL)
    second.wait_for(PartRestarted, lambda fact: fact.part == "network", after=mark)
    second.wait_joined(after=mark)
    again = second.mark()
    progress = second.wait_for(TrainingProgressed, after=again)
    assert progress.inner_steps > steps
    second.wait_common_round(first.peer_id, after=again)
    wait_same_anchors(first, second)
    assert second.network().pid != old_network.pid
    # The daemon of the killed process must not linger beside the new one with the same identity.
    wait_until(lambda: not {old_daemon.pid} & swarm.process_ids(), "the old daemon ends")


def test_a_killed_trainer_leaves_nothing_behind(swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess) -> None:
    mark = first.mark()
    family = {process.pid for process in second.family()}
    assert len(family) == 3
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait()
    wait_until(lambda: not family & swarm.process_ids(), "its processes end")
    first.wait_for(MemberChanged, lambda event: bool(event.reason) and event.remote == second.peer_id, after=mark)
    first.wait_for(RoundCommitted, lambda event: event.contributors == (first.peer_id,), after=first.mark())
    # Those of processes that were killed above have been swept, too.
    assert len(swarm.socket_directories()) == 1


def test_a_killed_peer_that_returns_catches_up_though_the_given_address_is_dead(
    swarm: ProcessSwarm, first: PeerProcess, second: PeerProcess
) -> None:
    assert not second.is_alive
    done = [event.fact.tokens for event in second.events() if isinstance(event.fact, TrainingProgressed)]
    saved = [event.fact for event in second.events() if isinstance(event.fact, CheckpointSaved)][-1]
    wait_until(lambda: min(first.versions().values()) > max(saved.versions), "the first goes on")
    dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{first.peer_id}"
    mark, mark_first = second.mark(), first.mark()
    again = swarm.start("second", *RARELY, "--join-timeout", "30", peers=[dead])
    assert again.wait_for(Fetched, lambda fact: bool(fact.fragments), after=mark).fragments == (0, 1)
    joined = again.wait_joined(after=mark)
    assert all(now > then for now, then in zip(joined.versions, saved.versions, strict=True))
    assert again.peer_id == second.peer_id
    # It was killed long after its last checkpoint, and others count what it did since.
    assert joined.earlier_tokens >= max(done) > 0
    first.wait_common_round(again.peer_id, after=mark_first)
    wait_same_anchors(first, again)
    family = {process.pid for process in again.family()}
    # Ctrl+C in a terminal goes to the whole process group.
    os.killpg(again.process.pid, signal.SIGINT)
    assert again.wait_end() == 0
    wait_until(lambda: not family & swarm.process_ids(), "its processes end")
    assert "Traceback" not in again.stderr
    assert len(swarm.socket_directories()) == 1
    assert isinstance(again.events()[-1].fact, LeftRun)
    first.wait_for(MemberChanged, lambda event: bool(event.reason) and event.remote == again.peer_id, after=mark_first)


def test_a_second_signal_ends_a_peer_at_once(swarm: ProcessSwarm, first: PeerProcess) -> None:
    peer = swarm.start("impatient", peers=[first.address])
    kill_as_soon_as_it_is_there(peer, "peer.network.process.main")
    peer.wait_joined()
    family = {process.pid for process in peer.family()}
    os.killpg(peer.process.pid, signal.SIGINT)
    wait_until(lambda: "ask again" in peer.stderr, "the first signal is answered")
    os.killpg(peer.process.pid, signal.SIGINT)
    assert peer.wait_end() == 130
    wait_until(lambda: not family & swarm.process_ids(), "its processes end")
    assert "Traceback" not in peer.stderr
    assert len(swarm.socket_directories()) == 1


async def files_of(swarm: ProcessSwarm, seed: PeerProcess) -> Path:
    """The run's files, as somebody who only looks gets them."""
    async with observe(swarm.run_id, [seed.address], 60.0) as observer:
        return await observer.fetch_files(swarm.folder_of("observer"), 60.0)


def test_a_seed_alone_keeps_the_run_between_trainers() -> None:
    files = {"README.md": b"# A run", "model.safetensors": os.urandom(5 << 19)}
    with process_swarm(make=partial(ProcessSwarm, files=files)) as swarm:
        seed = swarm.start("seed", command="seed", has_record=True)
        wait_until(lambda: "Listening on" in seed.stderr, "the seed is up")
        assert re.search(r"/ip4/127\.0\.0\.1/tcp/\d+/p2p/" + seed.peer_id, seed.stderr)
        early = swarm.start("early", "--max-steps", "60", peers=[seed.address])
        assert early.wait_end() == 0
        # It had the run's files, bit for bit, before it trained.
        fetched = early.wait_for(Fetched, lambda fact: bool(fact.names))
        assert (set(fetched.names), fetched.donors) == (set(files), (seed.peer_id,))
        folder = checked_folder(swarm.folder_of("early"), swarm.run.manifest)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
        observed = asyncio.run(files_of(swarm, seed))
        assert {path.name: path.read_bytes() for path in observed.iterdir()} == files
        reached = early.versions()
        assert min(reached[0], reached[1]) > 1
        later = swarm.start("later", peers=[seed.address])
        caught_up = later.wait_for(Fetched, lambda fact: bool(fact.fragments))
        assert caught_up.donors[0] == seed.peer_id
        joined = later.wait_joined()
        assert joined.versions == (reached[0], reached[1])
        later.wait_for(RoundCommitted, lambda event: event.version > max(joined.versions))
        wait_until(lambda: bool(common_outcomes(later, seed, {later.peer_id})), "the seed follows the later trainer")
        seed.process.send_signal(signal.SIGINT)
        assert seed.wait_end() == 0
        assert isinstance(seed.events()[-1].fact, LeftRun)
        later.wait_for(RoundCommitted, after=later.mark())
        # Its terminal is closed.
        os.killpg(later.process.pid, signal.SIGHUP)
        assert later.wait_end() == 0
        assert isinstance(later.events()[-1].fact, LeftRun)
        assert (swarm.processes(), swarm.socket_directories()) == ([], [])
