"""The encoded bytes of one fragment's rounds: contributions that arrived, results, and what broadcasts lost. Pure.

Results are addressed by their digest, so that a commit names exactly the bytes that everyone applies, wherever they
came from. The memory that one remote can claim is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from averaging.codec.blocks import Buffer, EncodedBlocks
from averaging.codec.codec import Codec
from averaging.codec.digests import digest_of
from averaging.fragment.broadcast_errors import BroadcastErrors
from averaging.outer.contribution_weights import Terms, staleness_of
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import Sent
from averaging.outer.shard_mean import Reduction
from averaging.wire.messages import DIGEST_BYTES, Commit, Contribution, Plan, Result, parts_within
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId

MAX_TIMES_GIVEN = 4
"""So often one remote gets the same result: it asks each holder again once or twice, and its line may break between."""
MAX_RESULT_ROUNDS = 64
"""For one version a remote may send so many times what it may hold in results. Honest reducers send their means again
for every attempt to close it.
"""
ENTRY_BYTES = 640
"""A message that is kept counts for so much at least: what it takes beside its payload, measured. No honest shard but
that of a tiny fragment is shorter."""


def payload_digest(payload: Buffer) -> bytes:
    """Digest of an encoded result, as plans and commits carry it."""
    return digest_of(payload)[:DIGEST_BYTES]


def terms_of(rule: OuterRule, round_: Plan | Commit, member: int, start: int = 0, end: int | None = None) -> Terms:
    """What decides the weight of roster member `member` in this round, in the mean of values [start, end).

    Of work that differs between those values tokens and steps are the mean over values, and the staleness is that over
    tokens, in whole numbers.
    """
    entry = round_.roster[member]
    if not entry.parts:
        return Terms(entry.tokens, entry.steps, staleness_of(rule.mode, round_.version, entry.base_version))
    token_values = step_values = late_values = num_values = 0
    for size, part in parts_within(entry, start, entry.parts[-1].end if end is None else end):
        num_values += size
        token_values += size * part.tokens
        step_values += size * part.steps
        late_values += size * part.tokens * staleness_of(rule.mode, round_.version, part.base_version)
    if not token_values:
        return Terms(0, 0, 0)
    staleness = (2 * late_values + token_values) // (2 * token_values)
    return Terms(-(-token_values // num_values), -(-step_values // num_values), staleness)


@dataclass
class _Given:
    """Results that one remote brought and that are still here, oldest first; `sent_bytes`: also those that are not."""

    keys: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    num_bytes: int = 0
    sent_bytes: int = 0


@dataclass
class ShardStore:
    """Bytes of one fragment of `num_values` values; versions older than the last few are pruned by the owner."""

    codec: Codec
    num_values: int
    _inbound: dict[tuple[int, int, PeerId, int], dict[PeerId, tuple[Contribution, bytes]]] = field(default_factory=dict)
    _results: dict[tuple[int, int, bytes], Buffer] = field(default_factory=dict)
    _attempts: dict[tuple[PeerId, int], list[tuple[int, PeerId, int]]] = field(default_factory=dict)
    """(attempt, leader, shard) of what a sender's contributions for a version are for: a heap, the earliest first."""
    _held_bytes: dict[PeerId, int] = field(default_factory=dict)
    _results_of: dict[PeerId, _Given] = field(default_factory=dict)
    _times_given: Counter[tuple[tuple[int, int, bytes], PeerId]] = field(default_factory=Counter)
    _errors: BroadcastErrors = field(default_factory=BroadcastErrors)
    _tentative: dict[tuple[int, int], tuple[bytes, EncodedBlocks | None]] = field(default_factory=dict)
    _own: dict[int, Sent] = field(default_factory=dict)
    """By version, of the last rounds; auditors ask for it."""

    def take_contribution(self, sender: PeerId, message: Contribution, payload: memoryview) -> None:
        """Keep a contribution until its round is reduced; what its sender sent for earlier attempts goes.

        Raises:
            PeerFault: wrong size, or more bytes than one remote may hold here.
        """
        self._drop_earlier_attempts(sender, message)
        self._check_size(sender, message, payload)
        held = self._held_bytes.get(sender, 0) + _charge(payload)
        if held > self._most_held_bytes:
            raise _too_much(sender, message, held, self._most_held_bytes)
        self._held_bytes[sender] = held
        key = (message.version, message.attempt, message.leader, message.shard)
        senders = self._inbound.setdefault(key, {})
        if sender not in senders:
            heappush(self._attempts.setdefault((sender, message.version), []), key[1:])
        senders[sender] = (message, bytes(payload))

    def take_result(self, sender: PeerId, message: Result, payload: memoryview) -> bytes:
        """Keep a result; returns its digest if it is new, else nothing.

        Of one sender the oldest make room: where many attempts to close a version fail, there are many honest ones.

        Raises:
            PeerFault: wrong size, values that are no numbers, or many times more bytes than one remote may hold here.
        """
        self._check_size(sender, message, payload)
        try:
            # Now: a commit that names them would be applied half-way, and no round of this fragment would end again.
            self.codec.check_decodable(self.unpack(message.end - message.start, payload))
        except ValueError as error:
            raise PeerFault(sender, f"sent a {message.KIND} whose values are no numbers: {error}") from error
        given = self._results_of.setdefault(sender, _Given())
        most, sent = MAX_RESULT_ROUNDS * self._most_held_bytes, given.sent_bytes + len(payload)
        if sent > most:
            raise _too_much(sender, message, sent, most)
        given.sent_bytes = sent
        data = bytes(payload)
        digest = payload_digest(data)
        key = (message.version, message.shard, digest)
        if key in self._results:
            return b""
        self._results[key] = data
        given.keys.append(key)
        given.num_bytes += _charge(data)
        while given.num_bytes > self._most_held_bytes:
            given.num_bytes -= _charge(self._results.pop(given.keys.popleft()))
        return digest

    def result(self, version: int, shard: int, digest: bytes) -> Buffer | None:
        return self._results.get((version, shard, digest))

    def give(self, version: int, shard: int, digest: bytes, remote: PeerId) -> Buffer | None:
        """The result with this digest, for a remote that asks; None: it is not here, or it has got it too often."""
        key = (version, shard, digest)
        if key not in self._results or self._times_given[key, remote] >= MAX_TIMES_GIVEN:
            return None
        self._times_given[key, remote] += 1
        return self._results[key]

    def keep_own(self, version: int, sent: Sent) -> None:
        """Keep this peer's contribution to a round that is over."""
        self._own[version] = sent

    def own(self, version: int) -> Sent | None:
        return self._own.get(version)

    def newest_own(self) -> Sent | None:
        return self._own[max(self._own)] if self._own else None

    def arrived(self, version: int) -> list[tuple[PeerId, int, PeerId, int]]:
        """(sender, attempt, leader, shard) of every contribution for `version`, in a fixed order."""
        return sorted(
            (sender, attempt, leader, shard)
            for (of_version, attempt, leader, shard), senders in self._inbound.items()
            if of_version == version
            for sender in senders
        )

    def arrivals(
        self, version: int, attempt: int, leader: PeerId, shard: int
    ) -> dict[PeerId, tuple[Contribution, bytes]]:
        """What came for one shard of one plan, by sender."""
        return dict(self._inbound.get((version, attempt, leader, shard), {}))

    def contributions(
        self, rule: OuterRule, plan: Plan, leader: PeerId, shard_index: int, members: Sequence[int]
    ) -> list[tuple[int, Terms, EncodedBlocks]]:
        """(roster index, terms, blocks) of those `members` whose bytes are here and are the planned ones."""
        shard = plan.shards[shard_index]
        arrived = self._inbound.get((plan.version, plan.attempt, leader, shard_index), {})
        found = []
        for member in members:
            entry = plan.roster[member]
            if entry.peer_id not in arrived:
                continue
            message, payload = arrived[entry.peer_id]
            # What the reducer signs about a member is what that member told it.
            told = (message.sequence, message.tokens, message.start, message.end)
            if told == (entry.sequence, entry.tokens, shard.start, shard.end):
                found.append(
                    (
                        member,
                        terms_of(rule, plan, member, shard.start, shard.end),
                        self.unpack(shard.end - shard.start, payload),
                    )
                )
        return found

    def unpack(self, num_values: int, payload: Buffer) -> EncodedBlocks:
        """Encoded blocks over stored bytes, without a copy."""
        return self.codec.unpack(num_values, memoryview(payload))

    def carried_error(self, start: int, end: int) -> EncodedBlocks | None:
        """What committed broadcasts of these values by this peer lost in encoding, whatever shards they were in; see
        `averaging/outer/shard_mean.py`."""
        return self._errors.within(start, end)

    def add_reduction(
        self, version: int, shard: int, start: int, end: int, reduction: Reduction, carries_error: bool = True
    ) -> bytes:
        """Keep a result of this peer and, until the commit decides, what its encoding lost. Returns its digest."""
        payload = b"".join(bytes(part) for part in reduction.encoded.pack())
        digest = payload_digest(payload)
        key = (version, shard, digest)
        for given in self._results_of.values():
            if key in given.keys:  # a remote was first with the same bytes; they are ours now, and stay
                given.keys.remove(key)
                given.num_bytes -= _charge(payload)
        self._results[key] = payload
        self._tentative[(start, end)] = (digest, reduction.error if carries_error else None)
        return digest

    def own_result(self, mean: Result) -> Buffer:
        """Payload of the last own result of these values."""
        return self._results[(mean.version, mean.shard, self._tentative[(mean.start, mean.end)][0])]

    def unsettled_place(self, digest: bytes) -> tuple[int, int] | None:
        """First value of this peer's result with this digest, and the value behind its last, until a commit decides."""
        return next((place for place, (own, _) in self._tentative.items() if own == digest), None)

    def settle(self, commit: Commit) -> None:
        """Keep encoding errors only where the commit contains exactly our result; elsewhere nothing was broadcast.

        Of that version the results of the commit stay, which others may ask for. What else came as one goes: it would
        be another version's worth of memory for each remote.
        """
        num_averaged = 0
        for shard in commit.shards:
            digest, error = self._tentative.get((shard.start, shard.end), (b"", None))
            if digest and digest == shard.digest:
                self._errors.put(shard.start, shard.end, error)
                num_averaged += shard.end - shard.start
        if num_averaged:
            self._errors.limit(num_averaged)
        committed = {(commit.version, index, result.digest) for index, result in enumerate(commit.shards)}
        self._results = {
            key: payload for key, payload in self._results.items() if key[0] != commit.version or key in committed
        }
        self._tentative.clear()

    def forget_errors(self) -> None:
        """The anchor was replaced: what old broadcasts lost belongs to another lineage."""
        self._errors.clear()
        self._tentative.clear()

    def prune(self, version: int, keep_from: int) -> None:
        """Drop results older than `keep_from`, contributions older than `version`, and both of rounds beyond the next.

        The last are of a lineage that this peer has left, whose version was higher.
        """
        latest = version + 1
        self._results = {key: value for key, value in self._results.items() if keep_from <= key[0] <= latest}
        self._own = {key: value for key, value in self._own.items() if keep_from <= key <= latest}
        self._inbound = {key: value for key, value in self._inbound.items() if version <= key[0] <= latest}
        self._attempts = {of: keys for of, keys in self._attempts.items() if version <= of[1] <= latest}
        self._times_given = Counter({key: num for key, num in self._times_given.items() if key[0] in self._results})
        self._held_bytes.clear()
        self._results_of.clear()

    @property
    def _most_held_bytes(self) -> int:
        """Of contributions, and of results, that one remote may hold: two versions; nobody honest needs more."""
        return 2 * self.codec.encoded_num_bytes(self.num_values) + 32_768

    def _drop_earlier_attempts(self, sender: PeerId, message: Contribution) -> None:
        """A member is in one attempt at a time; a version with many failed ones must not use up its share."""
        attempts = self._attempts.get((sender, message.version), [])
        while attempts and attempts[0][0] < message.attempt:
            key = (message.version, *heappop(attempts))
            senders = self._inbound[key]
            self._held_bytes[sender] = max(0, self._held_bytes.get(sender, 0) - _charge(senders.pop(sender)[1]))
            if not senders:
                del self._inbound[key]

    def _check_size(self, sender: PeerId, message: Contribution | Result, payload: memoryview) -> None:
        expected = self.codec.encoded_num_bytes(message.end - message.start)
        if len(payload) != expected:
            raise PeerFault(sender, f"sent {len(payload)} bytes in a {message.KIND}; expected {expected}")


def _charge(payload: Buffer) -> int:
    return max(len(payload), ENTRY_BYTES)


def _too_much(sender: PeerId, message: Contribution | Result, num_bytes: int, most: int) -> PeerFault:
    return PeerFault(sender, f"sent {num_bytes} bytes for fragment {message.fragment}; expected at most {most}")
