"""Hostile members of a chaos run: what was seen to hurt a swarm, with random values at and beyond every limit.

- boast: versions and lineages that nobody else has, in messages and records, with a constant state of them to fetch;
- pretend: the same with a chain of commits, all signed by itself, that leads from its real anchor to a constant state;
- inflate: tokens, steps, bases and rates of its offers, and the speed in its record;
- odd: records of all shapes and values that their checks let through;
- sink: streams that ask for state, digests and commits, and read nothing;
- extreme: contributions whose values are close to what float32 or the wire can hold;
- constant: contributions of one number everywhere;
- free_records: right records of many keys on its host, which send no message;
- lone_commits: each version closed at once by its host's keys, each alone, with a step back.

Everything goes out over the real links and hosts, so it meets the checks that honest peers have. `liars` has the
lies about rounds that need no numbers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from averaging.arrays import F32
from averaging.codec.blocks import EncodedBlocks
from averaging.lanes.handshake import open_greeted_stream
from averaging.lanes.links import ROUND_PROTOCOL
from averaging.outer.outer_step import anchor_digest
from averaging.rounds.machine_events import SendMessage
from averaging.transfer.messages import STATE_PROTOCOL
from averaging.transfer.snapshots import Snapshot
from averaging.wire import frames as wire
from averaging.wire.field_checks import Limits
from averaging.wire.frames import commit_digest
from averaging.wire.messages import (
    DIGEST_BYTES,
    Message,
    Offer,
    RosterEntry,
    VersionIs,
)
from dht.ground.errors import PeerFault
from dht.ground.fields import pack
from dht.ground.host import PeerId
from dht.records import peer_record
from dht.records.peer_record import PeerRecord
from peer.network.membership.run_handshake_policy import RunHandshakePolicy
from tests.kit.chaos.free_records import RECORDS_OF_AN_HONEST_PEER, Answer, Keys, Signer, lone_commit
from tests.kit.network.memory_networks import named
from tests.kit.notaries import notary_of

PAUSE_SECONDS = 3.0
"""Between two attacks, at most."""
WHOLE_NUMBERS = (0, 1, 2, 100, 10**6, *(2**bits + more for bits in (31, 40, 50, 53, 60, 63) for more in (-1, 0, 1)))
"""Tokens, steps and versions: around all limits that the wire, JSON, SQLite and int64 have or had."""
REAL_NUMBERS = (0.0, 5e-324, 1e-3, 1.0, 1e6, 1e15, 1e30, 1.7e308, float("inf"), float("nan"), -1.0)
"""Speeds and rates."""
LARGE_VALUES = (1e-45, 1e-38, 2.0**99, 2.0**100, 1e30, 1.7e38, 3.4e38)
"""Of parameters and contributions, in float32."""
LONGEST_CHAIN = 20
"""More commits than a peer keeps."""
MOST_STREAMS = 40
KEYS_BEGIN = 10_000
"""Numbers of peers' keys are below; each hostile host has as many for its own."""


@dataclass(frozen=True)
class _FalseState:
    snapshot: Snapshot
    frames: tuple[bytes, ...] = ()

    @property
    def head(self) -> tuple[int, bytes, int]:
        return self.snapshot.version, self.snapshot.digest, self.snapshot.lineage_tokens


def turn_hostile(peer: Any, kind: str) -> None:
    """Make `peer`, a `ChaosPeer`, do harm in the way of `kind`."""
    match kind:
        case "boast" | "pretend":
            _FalseDonor(peer, signs=kind == "pretend").begin()
        case "inflate":
            _inflate(peer)
        case "odd":
            _announce_oddly(peer)
        case "sink":
            peer.spawn(_open_and_read_nothing(peer))
        case "extreme":
            _send_values(peer, lambda size: peer.chance.choice(LARGE_VALUES) * _signs(peer, size))
        case "constant":
            _send_values(peer, lambda size: np.full(size, peer.chance.uniform(-1.0, 1.0)))
        case "free_records":
            peer.spawn(_have_many_keys(peer))
        case "lone_commits" if peer.profile.lie != "free_records":
            peer.spawn(_commit_alone(peer))


def _signs(peer: Any, size: int) -> Any:
    return np.array([peer.chance.choice((-1.0, 1.0)) for _ in range(size)])


def _send_values(peer: Any, values: Any) -> None:
    sending = peer.exchange.sending
    post_shards = sending._post_shards

    def lie(encoded: EncodedBlocks) -> EncodedBlocks:
        with np.errstate(over="ignore"):
            false = np.clip(values(encoded.num_values), -3.4e38, 3.4e38).astype(np.float32)
        try:
            return peer.codec.encode(false)  # type: ignore[no-any-return]
        except ValueError:  # more than this codec's scales hold
            return encoded

    def send_lies(fragment: Any, effect: Any) -> None:
        honest = fragment.state.pending
        if honest is not None:
            fragment.state.pending = replace(honest, encoded=lie(honest.encoded))
        post_shards(fragment, effect)
        fragment.state.pending = honest

    sending._post_shards = send_lies


# ------------------------------------------------------------------------------------------------- claims of lineages


class _FalseDonor:
    def __init__(self, peer: Any, *, signs: bool) -> None:
        self._peer = peer
        self._signs = signs
        self._states: dict[int, _FalseState] = {}

    def begin(self) -> None:
        """Serve and announce what is claimed, and claim something new every few seconds."""
        peer = self._peer
        snapshot, digest_at, commits_from = peer.snapshot, peer.digest_at, peer.commits_from
        frames, record = getattr(peer, "commit_frames", None), peer.record

        async def false_snapshot(fragment: int) -> Snapshot | None:
            false = self._states.get(fragment)
            return false.snapshot if false is not None else await snapshot(fragment)

        def false_digest(fragment: int, version: int) -> bytes:
            false = self._states.get(fragment)
            is_it = false is not None and version == false.snapshot.version
            return false.snapshot.digest if is_it and false is not None else digest_at(fragment, version)

        def false_commits(fragment: int, version: int) -> Any:
            false = self._states.get(fragment)
            if false is None or not self._signs:
                return commits_from(fragment, version)
            return [commit for commit in false.snapshot.commits if commit.version >= version]

        def false_frames(fragment: int, version: int) -> Any:
            known = [] if frames is None else list(frames(fragment, version))
            return [*known, *(self._states[fragment].frames if fragment in self._states else ())]

        peer.snapshot, peer.digest_at, peer.commits_from = false_snapshot, false_digest, false_commits
        peer.commit_frames, peer.record = false_frames, lambda: self._announced(record())
        peer.spawn(self._claim())

    def _announced(self, record: PeerRecord) -> PeerRecord:
        heads = [(record.versions[i], record.digests[i], record.lineage_tokens[i]) for i in range(len(record.versions))]
        heads = [self._states[index].head if index in self._states else honest for index, honest in enumerate(heads)]
        if not heads:
            return record
        versions, digests, tokens = zip(*heads, strict=True)
        false_record = replace(record, versions=versions, digests=tuple(d[:8] for d in digests), lineage_tokens=tokens)
        return false_record if is_accepted(false_record) else record

    async def _claim(self) -> None:
        peer, chance = self._peer, self._peer.chance
        while True:
            await asyncio.sleep(chance.uniform(0.0, PAUSE_SECONDS))
            if not peer.is_open:
                continue
            fragment = chance.choice(peer.fragments)
            false = self._chain(fragment) if self._signs else self._boast(fragment)
            self._states[fragment.index] = false
            peer.announce()
            version, digest, tokens = false.head
            claims: list[Message] = [VersionIs(fragment.index, version, digest[:DIGEST_BYTES], tokens)]
            claims += false.snapshot.commits[-1:]
            for other in [other for other in peer.world.live() if other is not peer]:
                for message in (*claims, *claims):  # the second time it is no news that a commit may follow
                    peer.links.post(other.name, [wire.encode(message)])

    def _constant(self, size: int) -> F32:
        return np.full(size, self._peer.chance.choice((0.0, 1.0, -1.0, 1e6, *LARGE_VALUES)), dtype=np.float32)

    def _boast(self, fragment: Any) -> _FalseState:
        chance, machine = self._peer.chance, fragment.machine
        near = (machine.version, machine.version + 1, machine.version + 2, machine.version + 17)
        version, tokens = chance.choice((*near, *near, *WHOLE_NUMBERS)), chance.choice(WHOLE_NUMBERS)
        anchor, momentum = self._constant(machine.num_values), np.zeros(machine.num_values, dtype=np.float32)
        return _FalseState(Snapshot(version, tokens, anchor, momentum, anchor_digest(anchor, momentum)))

    def _chain(self, fragment: Any) -> _FalseState:
        """Rounds of its own alone, each by its form a round like any other, on constant states."""
        peer, chance, machine = self._peer, self._peer.chance, fragment.machine
        commits = list(machine.history.values())[-3:]
        anchor, momentum = fragment.state.anchor.copy(), fragment.state.momentum.copy()
        digest, lineage_tokens = fragment.state.digest, fragment.state.lineage_tokens
        for version in range(machine.version, machine.version + chance.randint(1, LONGEST_CHAIN)):
            previous = commit_digest(commits[-1]) if commits else b""
            entry = RosterEntry(peer.name, chance.choice((300, 300, *WHOLE_NUMBERS[1:-5])), 30, version, 1)
            mean = chance.randbytes(DIGEST_BYTES)
            commits.append(lone_commit(machine.notary, fragment, version, digest, entry, mean, previous))
            lineage_tokens += entry.tokens
            anchor = self._constant(machine.num_values)
            digest = anchor_digest(anchor, momentum)
        snapshot = Snapshot(commits[-1].version + 1, lineage_tokens, anchor, momentum, digest, tuple(commits))
        return _FalseState(snapshot, tuple(wire.encode(commit) for commit in commits))


# --------------------------------------------------------------------------------------------------- numbers and shapes


def _inflate(peer: Any) -> None:
    """What its own machine knows stays honest: only what goes out is changed."""
    chance, record = peer.chance, peer.record
    speed = chance.choice(REAL_NUMBERS)
    # Who also sends what the wire refuses is soon left out: some keep to one number.
    numbers = chance.choice((WHOLE_NUMBERS, (2**31,), (2**40,), (2**50,)))

    def exaggerate(effect: Any) -> Any:
        is_offer = isinstance(effect, SendMessage) and isinstance(effect.message, Offer)
        if is_offer and chance.random() < 0.7:
            return replace(effect, message=_inflated(chance, effect.message, numbers))
        return effect

    def exaggerating(step: Any) -> Any:
        return lambda event, now: [exaggerate(effect) for effect in step(event, now)]

    def fast() -> PeerRecord:
        honest: PeerRecord = record()
        false = replace(honest, tokens_per_second=speed)
        return false if is_accepted(false) else honest

    for fragment in peer.fragments:
        fragment.machine.step = exaggerating(fragment.machine.step)
    peer.record = fast


def _inflated(chance: Any, offer: Offer, numbers: tuple[float, ...]) -> Offer:
    if len(numbers) == 1:
        return replace(offer, tokens=numbers[0])
    what = chance.choice(("tokens", "tokens", "steps", "base_version", "upload_bits_per_second"))
    numbers = REAL_NUMBERS if what == "upload_bits_per_second" else numbers
    return replace(offer, **{what: chance.choice(numbers)})


def is_accepted(record: PeerRecord) -> bool:
    """Whether the checks of peer records let these values through; no holder of records keeps others."""
    try:
        peer_record._check_peer_record(record)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _announce_oddly(peer: Any) -> None:
    chance, record = peer.chance, peer.record

    def odd() -> PeerRecord:
        honest: PeerRecord = record()
        for _ in range(10):
            false = replace(honest, **_odd_fields(chance, honest))
            if is_accepted(false):
                return false
        return honest

    peer.record = odd


def _odd_fields(chance: Any, honest: PeerRecord) -> dict[str, Any]:
    count = chance.choice((0, 1, len(honest.versions), len(honest.versions) + 1, 64))
    return chance.choice(  # type: ignore[no-any-return]
        (
            {
                "versions": tuple(chance.choice(WHOLE_NUMBERS) for _ in range(count)),
                "digests": tuple(chance.randbytes(8) for _ in range(count)),
                "lineage_tokens": tuple(chance.choice(WHOLE_NUMBERS) for _ in range(count)),
            },
            {"tokens": chance.choice(WHOLE_NUMBERS), "inner_steps": chance.choice(WHOLE_NUMBERS)},
            {"tokens_per_second": chance.choice(REAL_NUMBERS)},
            {"upload_bits_per_second": chance.choice(REAL_NUMBERS)},
            {"train_loss": chance.choice((*REAL_NUMBERS, None)), "validation_version": chance.choice(WHOLE_NUMBERS)},
            {"name": chance.choice(("[/nope]", "\x1b[2J", "a" * 40, "\u202e", "")), "started_at": 1e300},
            {"sequence": chance.choice(WHOLE_NUMBERS), "session": chance.choice(WHOLE_NUMBERS)},
            {"state": chance.choice(("joining", "training", "serving", "left")), "role": chance.choice(("seed", "x"))},
        )
    )


# --------------------------------------------------------------------------------------------------------------- sinks


async def _open_and_read_nothing(peer: Any) -> None:
    chance, held = peer.chance, []
    while True:
        await asyncio.sleep(chance.uniform(0.0, PAUSE_SECONDS / 10))
        others = sorted(other.name for other in peer.world.live() if other is not peer)
        if not others:
            continue
        try:
            protocol = chance.choice((STATE_PROTOCOL, STATE_PROTOCOL, STATE_PROTOCOL, ROUND_PROTOCOL))
            stream = await open_greeted_stream(peer.host, peer.handshake_policy, chance.choice(others), protocol)
            held.append(stream)
            for _ in range(3 if protocol == STATE_PROTOCOL else 0):
                fragment = chance.randrange(len(peer.fragments))
                kind = chance.choice((["state", fragment], ["header", fragment], ["commits", fragment, 0]))
                await stream.send(pack(kind))
            if len(held) > MOST_STREAMS:
                await held.pop(0).close()
        except PeerFault:
            continue


# ---------------------------------------------------------------------------------------------------------- many keys


async def _have_many_keys(peer: Any) -> None:
    """Records of many keys, each newer than the last; with lone commits the keys also close rounds."""
    num_honest = sum(not profile.lie for profile in peer.world.scenario.profiles)
    names = [named(KEYS_BEGIN * (1 + peer.number) + key) for key in range(RECORDS_OF_AN_HONEST_PEER * num_honest)]
    keys = _keys_of(peer, names, peer.chance.choice(get_args(Answer)))
    if "lone_commits" in peer.profile.further:
        peer.spawn(_close_alone(peer, keys))
    try:
        while True:
            if peer.is_open:
                records = keys.records(peer.record())
                peer.world.spread(peer, [replace(record, role="trainer", state="training") for record in records])
            await asyncio.sleep(peer.world.scenario.announce_seconds * peer.chance.uniform(0.5, 1.5))
    finally:
        await keys.close()


async def _commit_alone(peer: Any) -> None:
    """The same under its own key alone."""
    await _close_alone(peer, _keys_of(peer, [peer.name], "absent"))


async def _close_alone(peer: Any, keys: Keys) -> None:
    def tokens() -> int:
        return round(100 * peer.profile.interval_seconds)

    def others() -> list[PeerId]:
        return [other.name for other in peer.world.live() if other is not peer] if peer.is_open else []

    await keys.commit_alone(peer.fragments, peer.codec, tokens, others)


def _keys_of(peer: Any, names: list[PeerId], answer: Answer) -> Keys:
    sizes = peer.world.scenario.sizes
    limits = Limits(sizes, max(peer.codec.encoded_num_bytes(size) for size in sizes))
    signers = [
        Signer(name, notary_of(name), RunHandshakePolicy(peer.handshake_policy.rule, name, "trainer")) for name in names
    ]
    return Keys(peer.world.network, signers, limits, peer.clock, answer, peer.chance, {peer.name: peer.links})
