"""Proofs, tickets, invites, revisions: who is let in, who is not, and what each side is told. No network."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.rounds.round_facts import Fact
from dht.admission.admission import Admission, MemberRules, NotAdmitted
from dht.admission.dated_proofs import MAX_NONCES_PER_PEER, PROOF_SECONDS
from dht.admission.handshake_frames import AccessRule
from dht.admission.tickets import (
    INVITE_PREFIX,
    Invite,
    Pass,
    bind_ticket,
    decode_invite,
    decode_pass,
    encode_invite,
    encode_pass,
    issue_ticket,
)
from dht.ground.errors import Incompatible, PeerFault, UsageFault
from dht.ground.host import PeerId
from dht.identity.keys import Identity, make_run_id
from peer.config.manifest import RunManifest
from peer.events.peer_events import RunChanged
from peer.network.membership.manifest_revisions import (
    WHEN_JOINING,
    ManifestRevisions,
    describe_changes,
    member_rules,
    outer_lr_at,
)
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.clock import Clock

OWNER, ALICE, BOB, EVE = (Identity.from_seed(bytes([number]) * 32) for number in range(4))
RUN_ID = make_run_id("tiny", OWNER.public_key)
NOW = 1_000_000.0
DAY = 86_400


def counting() -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        yield number.to_bytes(16, "big")


CLOCK = Clock(NOW)


@pytest.fixture(autouse=True)
def _clock() -> None:
    CLOCK.now = NOW


def rules(kind: str = "allowlist", **changes: Any) -> MemberRules:
    listed = frozenset({ALICE.peer_id, BOB.peer_id}) if kind == "allowlist" else frozenset({ALICE.peer_id})
    return dataclasses.replace(MemberRules(kind, OWNER.public_key, listed), **changes)  # type: ignore[arg-type]


def side(who: Identity, held: MemberRules | None, ticket_pass: bytes = b"", **told: Any) -> Admission:
    nonces = counting()
    return Admission(
        *(who, RUN_ID, CLOCK, lambda: next(nonces)[4:] + who.public_key[:4]),
        ticket_pass=ticket_pass,
        rules=held,
        **told,
    )


def ticket_for(who: Identity, kind: str = "key", expires_at: float = NOW + DAY, owner: Identity = OWNER) -> bytes:
    ticket = issue_ticket(owner, RUN_ID, kind, who.public_key, int(expires_at), bytes(8))  # type: ignore[arg-type]
    return encode_pass(Pass(ticket))


def one_time(who: PeerId, secret: bytes = b"s" * 32) -> bytes:
    holder = Identity.from_seed(secret).public_key
    ticket = issue_ticket(OWNER, RUN_ID, "once", holder, int(NOW + DAY), b"once-ser")
    return encode_pass(bind_ticket(RUN_ID, ticket, secret, who))


def refusal(door: Admission, caller: Admission, remote: PeerId, purpose: Any = "stream") -> NotAdmitted:
    with pytest.raises(NotAdmitted) as caught:
        door.admit(remote, caller.prove(PeerId(ALICE.peer_id), purpose), "stream")
    return caught.value


# --- proofs


@pytest.mark.parametrize("purpose", ["dht", "run", "answer"])
def test_a_proof_for_another_purpose_is_none(purpose: str) -> None:
    assert "wrong signature" in refusal(side(ALICE, rules()), side(BOB, rules()), BOB.peer_id, purpose).what


def test_a_proof_counts_once_and_for_one_receiver_and_sender() -> None:
    alice, bob, eve = side(ALICE, rules()), side(BOB, rules()), side(EVE, rules(members=frozenset({BOB.peer_id})))
    proof = bob.prove(ALICE.peer_id, "stream")
    alice.admit(BOB.peer_id, proof, "stream")
    with pytest.raises(NotAdmitted, match="used before") as caught:
        alice.admit(BOB.peer_id, proof, "stream")
    assert caught.value.told == ""
    for door, sender in ((alice, EVE.peer_id), (eve, BOB.peer_id)):
        with pytest.raises(NotAdmitted, match="wrong signature"):
            door.admit(sender, bob.prove(ALICE.peer_id, "stream"), "stream")


@pytest.mark.parametrize("seconds", [-PROOF_SECONDS - 1, PROOF_SECONDS + 1])
def test_an_old_proof_and_one_from_the_future_are_refused_with_the_reason(seconds: float) -> None:
    alice, bob = side(ALICE, rules()), side(BOB, rules())
    proof = bob.prove(ALICE.peer_id, "stream")
    CLOCK.now += seconds
    with pytest.raises(NotAdmitted, match="clocks is wrong") as caught:
        alice.admit(BOB.peer_id, proof, "stream")
    assert "clock" in caught.value.told


def test_the_memory_of_proofs_is_bounded_and_forgets_nothing_that_could_be_shown_again() -> None:
    alice, bob = side(ALICE, rules()), side(BOB, rules())
    first = bob.prove(ALICE.peer_id, "stream")
    alice.admit(BOB.peer_id, first, "stream")
    memory = alice._nonces
    seen = memory._seen[BOB.peer_id]
    for number in range(MAX_NONCES_PER_PEER - 1):
        seen[number.to_bytes(16, "little")] = NOW + 2 * PROOF_SECONDS
    with pytest.raises(NotAdmitted, match="more than 4096"):
        alice.admit(BOB.peer_id, bob.prove(ALICE.peer_id, "stream"), "stream")
    with pytest.raises(NotAdmitted):
        alice.admit(BOB.peer_id, first, "stream")
    CLOCK.now += 2 * PROOF_SECONDS + 1
    alice.admit(BOB.peer_id, bob.prove(ALICE.peer_id, "stream"), "stream")
    assert len(memory._seen[BOB.peer_id]) == 1


def test_an_answer_to_another_call_is_none() -> None:
    alice, bob = side(ALICE, rules()), side(BOB, rules())
    answer = alice.answer(BOB.peer_id, bytes(16))
    with pytest.raises(NotAdmitted, match="another call"):
        bob.check_answer(ALICE.peer_id, answer, bytes(15) + b"x")


GOOD = side(BOB, rules()).prove(ALICE.peer_id, "stream")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_proof_with_any_byte_changed_is_refused_without_a_word(index: int, change: int) -> None:
    CLOCK.now = NOW
    changed = bytearray(GOOD)
    changed[index] ^= change
    with pytest.raises(NotAdmitted) as caught:
        side(ALICE, rules()).admit(BOB.peer_id, bytes(changed), "stream")
    assert caught.value.told == ""


@given(st.binary(max_size=600))
def test_garbage_is_refused_without_a_word(data: bytes) -> None:
    CLOCK.now = NOW
    with pytest.raises(NotAdmitted) as caught:
        side(ALICE, rules()).admit(BOB.peer_id, data, "stream")
    assert caught.value.told == ""
    with pytest.raises(ValueError, match=r"."):
        decode_pass(data)


# --- who is a member


def test_a_stranger_is_told_nothing_and_the_owner_which_rule_it_was() -> None:
    noted: list[tuple[PeerId, str]] = []
    alice = side(ALICE, rules(), on_refused=lambda remote, rule: noted.append((remote, rule)))
    fault = refusal(alice, side(EVE, rules()), EVE.peer_id)
    assert fault.told == ""
    assert noted == [(EVE.peer_id, "is not on the list of the run's keys and has no invite")]
    with pytest.raises(NotAdmitted):
        alice.admit(EVE.peer_id, b"", "stream")
    assert noted[-1] == (EVE.peer_id, "showed no membership proof")


def test_an_invite_for_a_key_lets_that_key_in_and_no_other() -> None:
    door, held = side(ALICE, rules("invite")), ticket_for(EVE)
    eve = side(EVE, rules("invite"), held)
    _, ticket = door.admit(EVE.peer_id, eve.prove(ALICE.peer_id, "stream"), "stream")
    assert ticket is not None
    assert ticket.kind == "key"
    assert "is for another key" in refusal(door, side(BOB, rules("invite"), held), BOB.peer_id).what


def test_a_one_time_invite_has_one_user() -> None:
    used: list[tuple[bytes, PeerId]] = []
    door = side(ALICE, rules("invite"), on_used=lambda ticket, peer_id: used.append((ticket.serial, peer_id)))
    eve = side(EVE, rules("invite"), one_time(EVE.peer_id))
    for _ in range(2):
        door.admit(EVE.peer_id, eve.prove(ALICE.peer_id, "stream"), "stream")
    assert used == [(b"once-ser", EVE.peer_id)]
    fault = refusal(door, side(BOB, rules("invite"), one_time(BOB.peer_id)), BOB.peer_id)
    assert fault.told == "the one-time invite was already used by another key"
    stolen = side(BOB, rules("invite"), one_time(EVE.peer_id))
    assert "is for another key" in refusal(door, stolen, BOB.peer_id).what


def test_the_user_of_a_one_time_invite_lets_nobody_else_in_with_it() -> None:
    alice = side(ALICE, rules("invite"), one_time(ALICE.peer_id))
    fault = refusal(alice, side(BOB, rules("invite"), one_time(BOB.peer_id)), BOB.peer_id)
    assert fault.told == "the one-time invite was already used by another key"


@pytest.mark.parametrize(
    ("held", "changes", "words"),
    [
        (ticket_for(EVE, expires_at=NOW - 1), {}, "the invite has expired"),
        (ticket_for(EVE), {"revoked_tickets": frozenset({bytes(8)})}, "the invite was revoked"),
        (ticket_for(EVE), {"revoked": frozenset({EVE.peer_id})}, "the owner of the run revoked this key"),
        (ticket_for(EVE), {"mode": "allowlist"}, "only listed keys"),
        (ticket_for(EVE, owner=BOB), {}, ""),
        (ticket_for(EVE, "errand", NOW + DAY), {}, ""),
        (b"\x93garbage", {}, ""),
    ],
)
def test_what_the_holder_of_a_useless_invite_is_told(held: bytes, changes: dict[str, Any], words: str) -> None:
    fault = refusal(side(ALICE, rules("invite", **changes)), side(EVE, rules("invite"), held), EVE.peer_id)
    assert words in fault.told if words else fault.told == ""


def test_whoever_is_revoked_is_excluded_at_once_also_on_open_streams() -> None:
    door = side(ALICE, rules("invite"))
    eve = side(EVE, rules("invite"), ticket_for(EVE))
    door.admit(EVE.peer_id, eve.prove(ALICE.peer_id, "stream"), "stream")
    assert not door.is_excluded(EVE.peer_id)
    door.set_rules(rules("invite", revoked_tickets=frozenset({bytes(8)})))
    assert door.is_excluded(EVE.peer_id)
    door.set_rules(rules("invite"))
    CLOCK.now += DAY
    assert door.is_excluded(EVE.peer_id)


def test_an_open_run_needs_no_proofs_and_makes_none() -> None:
    alice = side(ALICE, rules("open"))
    assert alice.prove(BOB.peer_id, "stream") == alice.answer(BOB.peer_id, bytes(16)) == b""
    alice.admit(EVE.peer_id, b"", "stream")
    keeper = RunHandshakePolicy(AccessRule(RUN_ID, bytes(32), "0.1.0"), ALICE.peer_id, "trainer", alice)
    plain = RunHandshakePolicy(AccessRule(RUN_ID, bytes(32), "0.1.0"), ALICE.peer_id, "trainer")
    assert keeper.hello(BOB.peer_id) == plain.hello(BOB.peer_id)
    assert keeper.welcome(BOB.peer_id, plain.hello(BOB.peer_id)) == plain.welcome(BOB.peer_id, b"")


def test_before_the_manifest_is_known_nobody_is_let_into_a_private_run() -> None:
    door = Admission(ALICE, RUN_ID, CLOCK, lambda: bytes(16), is_private=True)
    with pytest.raises(NotAdmitted):
        door.admit(BOB.peer_id, side(BOB, rules()).prove(ALICE.peer_id, "stream"), "stream")


def test_a_listed_key_that_has_no_manifest_yet_is_let_in_when_it_asks_for_it() -> None:
    door, newcomer = side(ALICE, rules()), side(BOB, None)
    door.admit(BOB.peer_id, newcomer.prove(ALICE.peer_id, "run"), "run")
    assert newcomer.prove(ALICE.peer_id, "stream") == b""
    assert side(BOB, rules("open")).prove(ALICE.peer_id, "run") == b""


# --- the first frames


def keepers(**changes: Any) -> tuple[RunHandshakePolicy, RunHandshakePolicy]:
    alice = RunHandshakePolicy(
        AccessRule(RUN_ID, bytes(32), "0.1.0"), ALICE.peer_id, "seed", side(ALICE, rules(**changes))
    )
    bob = RunHandshakePolicy(AccessRule(RUN_ID, bytes(32), "0.1.0"), BOB.peer_id, "trainer", side(BOB, rules()))
    return alice, bob


def test_members_greet_each_other() -> None:
    alice, bob = keepers()
    hello = bob.hello(ALICE.peer_id)
    assert len(hello) <= 1024
    assert alice.admit(BOB.peer_id, hello) == "trainer"
    bob.check_reply(ALICE.peer_id, hello, alice.welcome(BOB.peer_id, hello))


def test_a_welcome_of_a_stranger_is_not_believed() -> None:
    _, bob = keepers()
    eve = RunHandshakePolicy(AccessRule(RUN_ID, bytes(32), "0.1.0"), EVE.peer_id, "seed", side(EVE, rules()))
    hello = bob.hello(EVE.peer_id)
    with pytest.raises(PeerFault, match="is not on the list"):
        bob.check_reply(EVE.peer_id, hello, eve.welcome(BOB.peer_id, hello))
    with pytest.raises(PeerFault, match="no membership proof"):
        bob.check_reply(EVE.peer_id, hello, msgpack.packb({"protocol_version": 2, "refused": None}))


def test_strangers_get_no_frame_even_when_the_rest_of_their_hello_is_wrong() -> None:
    alice, _ = keepers()
    other = AccessRule(make_run_id("other", EVE.public_key), bytes(32), "0.1.0")
    for frame in (RunHandshakePolicy(other, EVE.peer_id, "trainer").hello(ALICE.peer_id), b"", b"\xc1", b"x" * 5000):
        with pytest.raises(PeerFault) as caught:
            alice.admit(EVE.peer_id, frame)
        assert alice.refusal(caught.value) == b""


def test_members_are_told_what_is_wrong() -> None:
    alice, bob = keepers()
    alice.minimum_software = "0.2.0"
    with pytest.raises(PeerFault, match=r"expected 0\.2\.0 or newer") as caught:
        alice.admit(BOB.peer_id, bob.hello(ALICE.peer_id))
    assert b"0.2.0" in alice.refusal(caught.value)


def test_an_errand_is_for_observers() -> None:
    alice, _ = keepers()
    held = ticket_for(EVE, "errand", NOW + 600)
    for role, is_welcome in (("observer", True), ("trainer", False)):
        eve = RunHandshakePolicy(AccessRule(RUN_ID, bytes(32), "0"), EVE.peer_id, role, side(EVE, rules(), held))
        eve.admission._new_nonce = lambda: os.urandom(16)  # type: ignore[union-attr]
        if is_welcome:
            assert alice.admit(EVE.peer_id, eve.hello(ALICE.peer_id)) == "observer"
        else:
            with pytest.raises(PeerFault, match="errand"):
                alice.admit(EVE.peer_id, eve.hello(ALICE.peer_id))


# --- invites as text


SECRET = b"0123456789abcdef0123456789abcdef"
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{ALICE.peer_id}"
TICKET = issue_ticket(OWNER, RUN_ID, "once", Identity.from_seed(SECRET).public_key, int(NOW), bytes(8))
INVITE = Invite(RUN_ID, (ADDRESS,), OWNER.public_key, TICKET, SECRET)


def test_no_secret_is_shown() -> None:
    shown = repr(INVITE) + repr(side(ALICE, rules(), one_time(ALICE.peer_id))) + repr(Pass(TICKET, b"b" * 64))
    for secret in (SECRET, TICKET.signature, b"b" * 64):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


@given(st.integers(0, 200), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_changed_invite_is_one_sentence(index: int, character: str) -> None:
    text = encode_invite(INVITE)
    position = len(INVITE_PREFIX) + index % (len(text) - len(INVITE_PREFIX))
    if text[position] == character:
        return
    with pytest.raises(UsageFault):
        decode_invite(text[:position] + character + text[position + 1 :])


@given(st.text(max_size=300))
def test_garbage_after_the_prefix_is_one_sentence(garbage: str) -> None:
    with pytest.raises(UsageFault):
        decode_invite(INVITE_PREFIX + garbage)


@pytest.mark.parametrize(
    "foreign",
    [
        dataclasses.replace(INVITE, owner_public_key=EVE.public_key),
        dataclasses.replace(INVITE, run_id=make_run_id("other", OWNER.public_key)),
        dataclasses.replace(INVITE, ticket=dataclasses.replace(TICKET, expires_at=2**39)),
    ],
)
def test_an_invite_of_another_owner_or_for_longer_than_signed(foreign: Invite) -> None:
    with pytest.raises(UsageFault, match="was changed or does not come from the owner"):
        decode_invite(encode_invite(foreign))


# --- revisions


def manifest(*changes: dict[str, Any], revision: int = 1, **fields: Any) -> RunManifest:
    access = {"mode": "allowlist", "members": [ALICE.peer_id]}
    return RunManifest.from_fields(
        {"name": "tiny", "revision": revision, "access": access, "changes": list(changes), **fields}
    )


def test_changes_count_from_their_version() -> None:
    changed = manifest(
        {"at_version": 5, "admit": [BOB.peer_id], "outer_lr": 0.3},
        {"at_version": 9, "revoke": [ALICE.peer_id, "00" * 8], "ends_run": True},
    )
    assert [outer_lr_at(changed, version) for version in (0, 4, 5, 8)] == [0.7, 0.7, 0.3, 0.3]
    members = [member_rules(changed, OWNER.public_key, version).members for version in (4, 5, 9)]
    assert members == [{ALICE.peer_id}, {ALICE.peer_id, BOB.peer_id}, {BOB.peer_id}]
    assert member_rules(changed, OWNER.public_key, WHEN_JOINING).revoked_tickets == {bytes(8)}
    assert changed.end_version == 9
    assert "outer_lr 0.3 from version 5" in describe_changes(changed, manifest())


def test_only_later_revisions_that_add_changes_are_followed() -> None:
    held = ManifestRevisions(manifest(), OWNER.public_key, ALICE.peer_id, keepers()[0], lambda fact: None)
    assert held.take(manifest({"at_version": 3, "outer_lr": 0.1}, revision=3))
    assert held.rule_at(2).outer_lr == 0.7
    assert held.rule_at(3).outer_lr == 0.1
    assert not held.take(manifest(revision=2))
    assert not held.take(manifest(revision=3))
    assert not held.take(manifest(revision=4, seed=1))
    assert held.rule_at(3).outer_lr == 0.1


def test_what_the_owners_changes_mean_for_this_peer() -> None:
    told: list[Fact] = []
    held = ManifestRevisions(manifest(), OWNER.public_key, ALICE.peer_id, keepers()[0], told.append)
    held.reached(1)
    held.take(manifest({"at_version": 4, "ends_run": True}, {"at_version": 6, "revoke": [ALICE.peer_id]}, revision=2))
    held.reached(3)
    assert not told
    held.reached(5)
    held.reached(5)
    assert told == [RunChanged(end_version=4)]
    at_once: list[Fact] = []
    ended = ManifestRevisions(manifest(), OWNER.public_key, ALICE.peer_id, keepers()[0], at_once.append)
    ended.reached(115)
    ended.take(manifest({"at_version": 0, "ends_run": True}, revision=2))
    assert at_once == [RunChanged(end_version=115)]
    with pytest.raises(Incompatible, match="revoked this peer's key"):
        held.reached(6)
    old = ManifestRevisions(manifest(), OWNER.public_key, ALICE.peer_id, keepers()[0], told.append)
    old.reached(0)
    old.take(manifest({"at_version": 0, "minimum_software": "99.0.0"}, revision=2))
    with pytest.raises(Incompatible, match=r"software 99\.0\.0 or newer"):
        old.reached(0)


def test_the_rules_reach_the_door() -> None:
    alice, _ = keepers()
    assert alice.admission is not None
    held = ManifestRevisions(manifest(), OWNER.public_key, ALICE.peer_id, alice, lambda fact: None)
    held.reached(0)
    assert alice.is_excluded(BOB.peer_id)
    held.take(manifest({"at_version": 2, "admit": [BOB.peer_id], "minimum_software": "0.0.1"}, revision=2))
    assert alice.is_excluded(BOB.peer_id)
    held.reached(2)
    assert not alice.is_excluded(BOB.peer_id)
    assert alice.minimum_software == "0.0.1"


# --- files


def test_key_and_invite_files_of_mode_0600(tmp_path: Path) -> None:
    from peer.network.membership.invitation import PASS_NAME, accept_invite, load_pass, read_invite
    from peer.secret_files import write_secret

    path = tmp_path / "a.invite"
    forever = issue_ticket(OWNER, RUN_ID, "once", Identity.from_seed(SECRET).public_key, 2**39, bytes(8))
    write_secret(path, encode_invite(dataclasses.replace(INVITE, ticket=forever)))
    assert path.stat().st_mode & 0o777 == 0o600
    invite = read_invite(str(path))
    accept_invite(invite, BOB, tmp_path)
    kept = tmp_path / PASS_NAME
    assert kept.stat().st_mode & 0o777 == 0o600
    data = load_pass(tmp_path)
    assert data is not None
    assert SECRET not in data
    assert decode_pass(data).ticket == forever
    for secret, read in ((path, lambda: read_invite(str(path))), (kept, lambda: load_pass(tmp_path))):
        secret.chmod(0o640)
        with pytest.raises(UsageFault, match=r"other users of this machine.*chmod 600"):
            read()
