"""Encoded bytes of one fragment's rounds: received contributions, results and errors of broadcasts. Pure.

Results are addressed by their digest, so a commit lists exactly the bytes that all peers apply, wherever those came
from. The memory that one remote can claim is bounded.
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
"""How often one remote gets the same result: it asks each holder once or twice more, and its line may break in
between."""
MAX_RESULT_ROUNDS = 64
"""A remote may send this many times the bytes of results that it may hold for one version. Honest reducers send their
means again for each attempt to close the version.
"""
ENTRY_BYTES = 640
"""Each stored message counts as at least this many bytes: its measured memory besides the payload. Only shards of tiny
fragments are shorter."""


def payload_digest(payload: Buffer) -> bytes:
    """Return the digest of an encoded result, as plans and commits contain it."""
    return digest_of(payload)[:DIGEST_BYTES]


def terms_of(rule: OuterRule, round_: Plan | Commit, member: int, start: int = 0, end: int | None = None) -> Terms:
    """Return the numbers that determine the weight of roster member `member` in the mean of values [start, end).

    If the work differs between those values, tokens and steps are the mean over values, and the staleness is the mean
    over tokens, in whole numbers.
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
    """Stored results that one remote sent, oldest first. `sent_bytes` also counts results that were dropped."""

    keys: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    num_bytes: int = 0
    sent_bytes: int = 0


@dataclass
class ShardStore:
    """Bytes of one fragment of `num_values` values. The owner prunes old versions."""

    codec: Codec
    num_values: int
    _inbound: dict[tuple[int, int, PeerId, int], dict[PeerId, tuple[Contribution, bytes]]] = field(default_factory=dict)
    _results: dict[tuple[int, int, bytes], Buffer] = field(default_factory=dict)
    _attempts: dict[tuple[PeerId, int], list[tuple[int, PeerId, int]]] = field(default_factory=dict)
    """By (sender, version): (attempt, leader, shard) of the sender's contributions, as a heap with the earliest attempt
    first."""
    _held_bytes: dict[PeerId, int] = field(default_factory=dict)
    _results_of: dict[PeerId, _Given] = field(default_factory=dict)
    _times_given: Counter[tuple[tuple[int, int, bytes], PeerId]] = field(default_factory=Counter)
    _errors: BroadcastErrors = field(default_factory=BroadcastErrors)
    _tentative: dict[tuple[int, int], tuple[bytes, EncodedBlocks | None]] = field(default_factory=dict)
    own_work: dict[int, Sent] = field(default_factory=dict)
    """Own contributions of the last rounds, by version, for auditors."""

    def take_contribution(self, sender: PeerId, message: Contribution, payload: memoryview) -> None:
        """Store a contribution until its round is reduced. Drop the sender's contributions to earlier attempts.

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
        """Store a result. Return its digest if the result is new, otherwise empty bytes.

        The oldest results of the same sender make room: if many attempts to close a version fail, a sender has many
        honest results.

        Raises:
            PeerFault: wrong size, values that are not numbers, or many times more bytes than one remote may hold here.
        """
        self._check_size(sender, message, payload)
        try:
            # Checked now, because a commit with such values would be applied halfway and stop all rounds of this
            # fragment.
            self.codec.largest(self.unpack(message.end - message.start, payload))
        except ValueError as error:
            raise PeerFault(sender, f"sent a {message.KIND} whose values are not numbers: {error}") from error
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
        """Return the result with this digest to a remote that asks. Return None if it is not here, or the remote
        received it too often.
        """
        key = (version, shard, digest)
        if key not in self._results or self._times_given[key, remote] >= MAX_TIMES_GIVEN:
            return None
        self._times_given[key, remote] += 1
        return self._results[key]

    def arrived(self, version: int) -> list[tuple[PeerId, int, PeerId, int]]:
        """Return (sender, attempt, leader, shard) of each contribution for `version`, sorted."""
        return sorted(
            (sender, attempt, leader, shard)
            for (of_version, attempt, leader, shard), senders in self._inbound.items()
            if of_version == version
            for sender in senders
        )

    def arrivals(
        self, version: int, attempt: int, leader: PeerId, shard: int
    ) -> dict[PeerId, tuple[Contribution, bytes]]:
        """Return the contributions that arrived for one shard of one plan, by sender."""
        return dict(self._inbound.get((version, attempt, leader, shard), {}))

    def contributions(
        self, rule: OuterRule, plan: Plan, leader: PeerId, shard_index: int, members: Sequence[int]
    ) -> list[tuple[int, Terms, EncodedBlocks]]:
        """Return (roster index, terms, blocks) of the `members` whose contributions have arrived and match the plan."""
        shard = plan.shards[shard_index]
        arrived = self._inbound.get((plan.version, plan.attempt, leader, shard_index), {})
        found = []
        for member in members:
            entry = plan.roster[member]
            if entry.peer_id not in arrived:
                continue
            message, payload = arrived[entry.peer_id]
            # The reducer signs only numbers that the member itself sent.
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
        """Return encoded blocks as views into stored bytes, without a copy."""
        return self.codec.unpack(num_values, memoryview(payload))

    def carried_error(self, start: int, end: int) -> EncodedBlocks | None:
        """Return the encoding errors of this peer's committed broadcasts of these values, whatever shards they were in;
        see `averaging/outer/shard_mean.py`.
        """
        return self._errors.within(start, end)

    def add_reduction(
        self, version: int, shard: int, start: int, end: int, reduction: Reduction, carries_error: bool = True
    ) -> bytes:
        """Store a result of this peer and, until the commit decides, its encoding error. Return its digest."""
        payload = b"".join(bytes(part) for part in reduction.encoded.pack())
        digest = payload_digest(payload)
        key = (version, shard, digest)
        for given in self._results_of.values():
            if key in given.keys:  # a remote sent the same bytes first; now they count as this peer's and stay
                given.keys.remove(key)
                given.num_bytes -= _charge(payload)
        self._results[key] = payload
        self._tentative[(start, end)] = (digest, reduction.error if carries_error else None)
        return digest

    def own_result(self, mean: Result) -> Buffer:
        """Return the payload of this peer's last result of these values."""
        return self._results[(mean.version, mean.shard, self._tentative[(mean.start, mean.end)][0])]

    def unsettled_place(self, digest: bytes) -> tuple[int, int] | None:
        """Return the (start, end) of this peer's result with this digest, until a commit decides; None if there is
        none.
        """
        return next((place for place, (own, _) in self._tentative.items() if own == digest), None)

    def settle(self, commit: Commit) -> None:
        """Keep encoding errors only for shards whose committed result is this peer's; the other results were not
        broadcast.

        Results in the commit stay, since other peers may request them. Other results of that version are dropped: they
        would cost each remote's memory for another version.
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
        """Forget all errors: the anchor was replaced, and the errors belong to another lineage."""
        self._errors.clear()
        self._tentative.clear()

    def prune(self, version: int, keep_from: int) -> None:
        """Drop results older than `keep_from`, contributions older than `version`, and both for rounds beyond the next.

        Rounds beyond the next belong to a lineage that this peer left at a higher version.
        """
        latest = version + 1
        self._results = {key: value for key, value in self._results.items() if keep_from <= key[0] <= latest}
        self.own_work = {key: value for key, value in self.own_work.items() if keep_from <= key <= latest}
        self._inbound = {key: value for key, value in self._inbound.items() if version <= key[0] <= latest}
        self._attempts = {of: keys for of, keys in self._attempts.items() if version <= of[1] <= latest}
        self._times_given = Counter({key: num for key, num in self._times_given.items() if key[0] in self._results})
        self._held_bytes.clear()
        self._results_of.clear()

    @property
    def _most_held_bytes(self) -> int:
        """Bytes of contributions, and of results, that one remote may hold: two versions. Honest peers need no more."""
        return 2 * self.codec.encoded_num_bytes(self.num_values) + 32_768

    def _drop_earlier_attempts(self, sender: PeerId, message: Contribution) -> None:
        """Drop contributions to earlier attempts: a member is in one attempt at a time, and many failed ones must not
        exhaust its share.
        """
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
