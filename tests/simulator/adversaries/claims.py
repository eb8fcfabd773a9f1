"""Hostile peers of the simulator that claim what is not so: versions, lineages, tokens, speeds and shapes.

- boasts: says in messages and in its record that it has versions and tokens that nobody has, and hands out a constant
  state of them;
- pretends: the same with a chain of commits from its real anchor, signed by itself alone;
- inflates: offers with far more tokens than anybody trains, and a record with a speed of nothing or of anything;
- odd_records: records with other numbers of fragments, and with values at every limit.

Numbers are drawn around all limits of the wire, of JSON and of the tables that hold them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from averaging.fragment.runtime import FragmentRuntime
from averaging.outer.outer_step import anchor_digest
from averaging.signing.round_signatures import Notary
from averaging.transfer.snapshots import Snapshot
from averaging.wire import frames, messages
from averaging.wire.frames import commit_digest
from dht.records.peer_record import PeerRecord, encode_peer_record
from peer.network.node.node import Node
from tests.simulator.scenarios.spec import LieKind

CLAIMS: frozenset[LieKind] = frozenset({"boasts", "pretends", "inflates", "odd_records"})
"""The kinds that this module knows."""
WHOLE_NUMBERS = (0, 1, 2, 100, 10**6, *(2**bits + more for bits in (31, 40, 50, 53, 60, 63) for more in (-1, 0, 1)))
REAL_NUMBERS = (0.0, 5e-324, 1e-3, 1.0, 1e6, 1e15, 1e30, 1.7e308)
CONSTANTS = (0.0, 1.0, -1.0, 1e6, 1e-45, 2.0**99, 1.7e38, 3.4e38)
"""Of a false anchor: up to what float32 holds."""
LONGEST_CHAIN = 20
"""Commits that nobody else took part in."""
PAUSE_SECONDS = 5.0
"""Between two claims."""


class Claimant(Node):
    """A node that hands out, as a `StateSource`, and announces what it claims; `claim_on` makes the claims."""

    _kind: LieKind | None = None

    def claims(self, kind: LieKind, randomness: random.Random) -> None:
        """Begin to lie in the way of `kind`."""
        self._false: dict[int, Snapshot] = {}
        self._kind, self._randomness = kind, randomness
        self._speed = randomness.choice((0.0, *REAL_NUMBERS))

    async def claim_on(self) -> None:
        """Claim something new now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._randomness.uniform(0.0, PAUSE_SECONDS))
            if self.exchange.sending.takes_part and self._kind in ("boasts", "pretends"):
                self._claim(self._randomness.choice(self.fragments))

    async def snapshot(self, fragment: int) -> Snapshot | None:
        return self._false[fragment] if fragment in self._false else await super().snapshot(fragment)

    def digest_at(self, fragment: int, version: int) -> bytes:
        false = self._false.get(fragment)
        return false.digest if false is not None and false.version == version else super().digest_at(fragment, version)

    def commit_frames(self, fragment: int, version: int) -> Sequence[bytes]:
        if (false := self._false.get(fragment)) is not None:
            return [frames.encode(commit) for commit in false.commits if commit.version >= version]
        return super().commit_frames(fragment, version)

    def _claim(self, fragment: FragmentRuntime) -> None:
        false = self._false[fragment.index] = self._false_state(fragment)
        claim = messages.VersionIs(
            fragment.index, false.version, false.digest[: messages.DIGEST_BYTES], false.lineage_tokens
        )
        said: list[messages.Message] = [claim, *false.commits[-1:]]
        for peer_id in (record.peer_id for record in self.membership.members()):
            for message in (*said, *said):  # at first somebody's commit may lead there; the second time none did
                self.links.post(peer_id, [frames.encode(message)])

    def _false_state(self, fragment: FragmentRuntime) -> Snapshot:
        chance, machine = self._randomness, fragment.machine
        anchor = np.full(machine.num_values, chance.choice(CONSTANTS), dtype=np.float32)
        momentum = np.zeros(machine.num_values, dtype=np.float32)
        digest = anchor_digest(anchor, momentum)
        if self._kind == "boasts":
            version = machine.version + chance.choice((0, 1, 2, 17, *WHOLE_NUMBERS))
            return Snapshot(version, chance.choice(WHOLE_NUMBERS), anchor, momentum, digest)
        commits = [*machine.log.newest.values()][-1:]
        tokens, before = fragment.state.lineage_tokens, fragment.state.digest
        for version in range(machine.version, machine.version + chance.randint(1, LONGEST_CHAIN)):
            entry = messages.RosterEntry(self.me, chance.choice((10**4, 10**6, 2**40, 2**50)), 10, version, 1)
            mean = chance.randbytes(messages.DIGEST_BYTES)
            previous = commit_digest(commits[-1]) if commits else b""
            commits.append(lone_commit(fragment, version, before[: messages.DIGEST_BYTES], entry, mean, previous))
            tokens, before = tokens + entry.tokens, chance.randbytes(len(digest))
        return Snapshot(commits[-1].version + 1, tokens, anchor, momentum, digest, tuple(commits))

    def own_record(self) -> PeerRecord:
        honest = super().own_record()
        if self._kind is None:
            return honest  # it is being made
        false = dataclasses.replace(honest, **self._false_fields(honest))
        try:
            encode_peer_record(false, self.who.identity)
        except ValueError:
            return honest  # no holder of records keeps it
        return false

    def _false_fields(self, honest: PeerRecord) -> dict[str, Any]:
        chance, count = self._randomness, len(honest.versions)
        if self._kind == "inflates":
            return {"tokens_per_second": self._speed}
        heads = [(honest.versions[at], honest.digests[at], honest.lineage_tokens[at]) for at in range(count)]
        if self._kind == "odd_records":
            for field in ("tokens", "inner_steps", "rounds_contributed"):
                if chance.random() < 0.3:
                    return {field: chance.choice(WHOLE_NUMBERS)}
            if chance.random() < 0.3:
                return {"name": chance.choice(("[/nope]", "[link=x]", "%s{0}")), "train_loss": chance.choice(CONSTANTS)}
            numbers = [chance.choice(WHOLE_NUMBERS) for _ in range(chance.choice((0, 1, count, count + 1, 64)))]
            heads = [(number, chance.randbytes(8), chance.choice(WHOLE_NUMBERS)) for number in numbers]
        for index, false in self._false.items():
            if index < len(heads):
                heads[index] = (false.version, false.digest[:8], false.lineage_tokens)
        return {
            "versions": tuple(version for version, _, _ in heads),
            "digests": tuple(digest for _, digest, _ in heads),
            "lineage_tokens": tuple(tokens for _, _, tokens in heads),
        }


def lone_commit(
    fragment: FragmentRuntime,
    version: int,
    anchor: bytes,
    entry: messages.RosterEntry,
    mean: bytes,
    previous: bytes = b"",
    signer: Notary | None = None,
) -> messages.Commit:
    """A commit of one member, by its form one like any other.

    Args:
        anchor, mean: their digests, as messages have them.
        previous: digest of the commit before.
        signer: of the member's key; None: the notary of the fragment's own machine.
    """
    notary, size, me = signer or fragment.machine.notary, fragment.machine.num_values, entry.peer_id
    plan = messages.Plan(fragment.index, version, 0, anchor, (entry,), (messages.ShardPlan(0, size, 0),), 10.0, 20.0)
    result = messages.ShardResult(0, size, 0, mean, (0,))
    result = dataclasses.replace(result, signature=notary.sign_result(plan, me, result))
    return notary.sign_commit(messages.Commit(fragment.index, version, 0, me, anchor, (entry,), (result,), previous))


def exaggerating(randomness: random.Random) -> Callable[[messages.Message], messages.Message]:
    """What its own machine knows stays honest: only what goes out is changed."""
    # One number of a fragment for good: a sender of what the wire refuses is soon excluded, and proves nothing.
    tokens: dict[int, int] = {}

    def false(message: messages.Message) -> messages.Message:
        if not isinstance(message, messages.Offer) or randomness.random() >= 0.7:
            return message
        chosen = tokens.setdefault(message.fragment, randomness.choice((2**31, 2**40, 2**50)))
        return dataclasses.replace(message, tokens=chosen)

    return false
