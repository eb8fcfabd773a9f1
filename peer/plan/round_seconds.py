"""Cost of one round of one fragment for each member, counted on the frames that the exchange sends. Pure.

Shards come from `plan_shards`, payloads from the codec, headers from `averaging.wire.frames.encode`. A member sends
its contribution, except the shards that it reduces itself, and sends their mean to every other member. Members
lead in turn, so the count of control messages is a mean over the leaders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from averaging.codec.codec import Codec
from averaging.rounds.shard_plan import plan_shards
from averaging.rounds.waits import HEARTBEAT_SECONDS
from averaging.wire import frames, messages
from dht.ground.host import FRAME_HEADER_BYTES, PeerId

LINE_SHARE = 1448 / 1500
"""Share of a line that carries frames: the payload of a full TCP segment over IPv4 with timestamps."""

ONE_WAY_MESSAGES = 5
"""Offer, plan, contribution, result (or its report), commit: each message waits for the previous message."""

_PEER = PeerId("12D3KooW" + "A" * 44)
_DIGEST = bytes(messages.DIGEST_BYTES)
_SIGNATURE = bytes(messages.SIGNATURE_BYTES)
_VERSION = 1000
_TOKENS = 1 << 20
_STEPS = 100
_SEQUENCE = 1 << 40
"""Numbers of a typical round. msgpack encodes smaller numbers in fewer bytes, so a header may be slightly shorter."""


@dataclass(frozen=True, slots=True)
class MemberLink:
    """The line of one member. Rates are those of the line; latency is one way."""

    upload_bits_per_second: float
    download_bits_per_second: float
    latency_seconds: float = 0.0
    reachable: bool = True


@dataclass(frozen=True, slots=True)
class MemberTraffic:
    """Bytes of one member in one round, including frame headers. Control bytes are a mean over the leaders.

    Attributes:
        values: number of values of its contribution that it sends to other reducers, and of means that it receives.
    """

    values: int
    contribution_bytes_up: int
    contribution_bytes_down: int
    result_bytes_up: int
    result_bytes_down: int
    control_bytes_up: float
    control_bytes_down: float

    @property
    def bytes_up(self) -> float:
        return self.contribution_bytes_up + self.result_bytes_up + self.control_bytes_up

    @property
    def bytes_down(self) -> float:
        return self.contribution_bytes_down + self.result_bytes_down + self.control_bytes_down


def round_traffic(
    num_values: int,
    codec: Codec,
    lines: Sequence[MemberLink],
    seconds: float = 0.0,
) -> tuple[MemberTraffic, ...]:
    """Count the traffic of each member of a round in which every member takes part and nothing fails.

    Args:
        num_values: size of the fragment.
        lines: lines of the members; their rates decide the division of the shards.
        seconds: duration of the round, during which leaders send signs of life.
    """
    shards = plan_shards(
        num_values,
        codec.block_size,
        [line.upload_bits_per_second for line in lines],
        [line.reachable for line in lines],
    )
    num_members = len(lines)
    num_others = num_members - 1
    own_values = [0] * num_members
    own_contribution_bytes = [0] * num_members
    own_result_bytes = [0] * num_members
    own_shards = [0] * num_members
    for index, shard in enumerate(shards):
        payload_bytes = codec.encoded_num_bytes(shard.end - shard.start)
        contribution = messages.Contribution(0, _VERSION, 0, _PEER, index, _SEQUENCE, shard.start, shard.end, _TOKENS)
        own_values[shard.reducer] += shard.end - shard.start
        own_shards[shard.reducer] += 1
        own_contribution_bytes[shard.reducer] += _frame_bytes(contribution) + payload_bytes
        own_result_bytes[shard.reducer] += _frame_bytes(messages.Result(0, _VERSION, index, shard.start, shard.end))
        own_result_bytes[shard.reducer] += payload_bytes
    control = _control_bytes(shards, num_members, seconds)
    return tuple(
        MemberTraffic(
            values=num_values - own_values[member],
            contribution_bytes_up=sum(own_contribution_bytes) - own_contribution_bytes[member],
            contribution_bytes_down=num_others * own_contribution_bytes[member],
            result_bytes_up=num_others * own_result_bytes[member],
            result_bytes_down=sum(own_result_bytes) - own_result_bytes[member],
            control_bytes_up=control.up(own_shards[member]),
            control_bytes_down=control.down(own_shards[member]),
        )
        for member in range(num_members)
    )


def round_seconds(traffic: Sequence[MemberTraffic], lines: Sequence[MemberLink]) -> float:
    """Estimate the time from the last offer to the commit: contributions, then results, at the slowest line's rate.

    Latency is included. Encoding, decoding and averaging are not; `benchmarks/bench_codec.py` measures them.
    """
    contributions, results = (
        max(_line_seconds(up, down, line) for (up, down), line in zip(sizes, lines, strict=True))
        for sizes in (
            [(member.contribution_bytes_up, member.contribution_bytes_down) for member in traffic],
            [(member.result_bytes_up, member.result_bytes_down) for member in traffic],
        )
    )
    num_messages = ONE_WAY_MESSAGES if len(lines) > 1 else 0
    return contributions + results + num_messages * max(line.latency_seconds for line in lines)


def busy_seconds(member: MemberTraffic, line: MemberLink) -> float:
    """Return how long one round keeps the busier direction of a member's line busy."""
    return _line_seconds(member.bytes_up, member.bytes_down, line)


def _line_seconds(num_bytes_up: float, num_bytes_down: float, line: MemberLink) -> float:
    up = 8 * num_bytes_up / LINE_SHARE / line.upload_bits_per_second
    return max(up, 8 * num_bytes_down / LINE_SHARE / line.download_bits_per_second)


@dataclass(frozen=True, slots=True)
class _Control:
    """Bytes of the control frames of one round."""

    num_members: int
    num_shards: int
    offer: int
    waits: int
    plan: int
    reduced: int
    commit: int

    def up(self, num_own_shards: int) -> float:
        others = self.num_members - 1
        as_member = self.offer + num_own_shards * self.reduced
        as_leader = others * (self.waits + self.plan + self.commit)
        return (others * as_member + as_leader) / self.num_members

    def down(self, num_own_shards: int) -> float:
        others = self.num_members - 1
        as_member = self.waits + self.plan + self.commit
        as_leader = others * self.offer + (self.num_shards - num_own_shards) * self.reduced
        return (others * as_member + as_leader) / self.num_members


def _control_bytes(shards: Sequence[messages.ShardPlan], num_members: int, seconds: float) -> _Control:
    everybody = tuple(range(num_members))
    roster = (messages.RosterEntry(_PEER, _TOKENS, _STEPS, _VERSION, _SEQUENCE),) * num_members
    results = tuple(shard.result(_DIGEST, everybody, _SIGNATURE) for shard in shards)
    return _Control(
        num_members,
        len(shards),
        offer=_frame_bytes(messages.Offer(0, _VERSION, 0, _DIGEST, _VERSION, _TOKENS, _STEPS, _SEQUENCE, 1e7, True)),
        waits=_frame_bytes(messages.Wait(0, _VERSION, 0, num_members, num_members))
        * (1 + math.floor(seconds / HEARTBEAT_SECONDS)),
        plan=_frame_bytes(messages.Plan(0, _VERSION, 0, _DIGEST, roster, tuple(shards), 10.5, 30.5)),
        reduced=_frame_bytes(messages.Reduced(0, _VERSION, 0, len(shards) - 1, _DIGEST, everybody, _SIGNATURE)),
        commit=_frame_bytes(messages.Commit(0, _VERSION, 0, _PEER, _DIGEST, roster, results, _DIGEST, _SIGNATURE)),
    )


def _frame_bytes(message: messages.Message) -> int:
    return FRAME_HEADER_BYTES + len(frames.encode(message))
