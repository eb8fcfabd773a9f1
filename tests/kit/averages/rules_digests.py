"""Digests of what the rules of `averaging/rules.py` compute from fixed inputs; a file holds them for each number.

`tests/averaging/test_rules.py` compares. While a number is not released, its file is written anew with

    python -m tests.kit.averages.rules_digests

Afterwards its digests never change. Software with another arithmetic raises `RULES`, and this command then begins the
file of the new number.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from averaging.arrays import F32
from averaging.codec.codec import Codec, make_codec
from averaging.fragment.broadcast_errors import BroadcastErrors
from averaging.outer.contribution_weights import Terms, rates_at, shard_rates, staleness_of, weights_of
from averaging.outer.fragment_layout import build_layout
from averaging.outer.outer_settings import OuterRule
from averaging.outer.outer_step import anchor_digest, outer_step_into, overlay_of
from averaging.outer.robust_mean import combine
from averaging.outer.shard_mean import add_error, keep_error
from averaging.rounds.leader_ranking import next_contributors, rank_leaders
from averaging.rounds.shard_plan import plan_shards
from averaging.rules import RULES
from averaging.signing.commit_credit import milli, round_of
from averaging.signing.round_signatures import Scope, commit_statement, contribution_statement, mean_statement
from averaging.trust.mean_checks import is_wrong, suspicion
from averaging.wire.frames import commit_digest
from averaging.wire.messages import DIGEST_BYTES, Commit, Contribution, RosterEntry, ShardResult
from averaging.wire.work_by_range import Waiting, with_more
from dht.ground.host import PeerId
from dht.records.lineages import Side, replaces
from tests.kit.averages.commit_log import digests as digests_of_rounds
from tests.kit.averages.commit_log import work_of

FOLDER: Final = Path(__file__).parents[2] / "averaging" / "golden_rules"
RELEASED: Final[dict[int, str]] = {}
"""SHA-256 of the file of each number that a release had: such a file never changes."""

CODECS: Final = ("int4", "fp32")
ROUNDS: Final[dict[str, OuterRule]] = {
    "mean, carry": OuterRule("carry", 0.7, 0.5, overlay_gain=0.7),
    "mean, sync": OuterRule("sync", 0.7, 0.9),
    "mean, streaming": OuterRule("streaming", 0.4, 0.5),
    "mean, eager": OuterRule("eager", 0.7, 0.5),
    "centered clip": OuterRule("carry", 0.5, 0.5, combine="centered_clip", clip_norm_ratio=2.0, clip_weight_ratio=3.0),
}
MEMBERS: Final = tuple(PeerId(f"member{number}") for number in range(5))


def all_digests() -> dict[str, str]:
    """Name of each part of the rules -> SHA-256 of what it computes, in hexadecimal digits."""
    found = {}
    for name, codec in itertools.product(ROUNDS, CODECS):
        with ThreadPoolExecutor(1) as executor:
            rounds = list(digests_of_rounds(ROUNDS[name], make_codec(codec, 64), 0, executor))
        found[f"rounds: {name}, {codec}"] = _digest(rounds)
    return found | digests_of_parts()


def digests_of_parts() -> dict[str, str]:
    """Those of `all_digests` that are not of whole rounds."""
    return {part.__name__.removeprefix("_").replace("_", " "): _digest(list(part())) for part in PARTS}


def _digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _encoding() -> Iterator[object]:
    for name in CODECS:
        codec, values = make_codec(name, 64), work_of(7)
        encoded = codec.encode_with_residual(values)
        yield b"".join(map(bytes, encoded.pack())), values.tobytes()
        yield _decoded(codec, work_of(8)).tobytes()


def _weights_and_rates() -> Iterator[object]:
    terms = [Terms(1000 * number, 10 + number, number % 6) for number in range(1, 9)]
    for rule in ROUNDS.values():
        yield weights_of(terms, rule), shard_rates(terms, rule), rates_at(0.5, rule, 7)
        yield [staleness_of(rule.mode, 9, base) for base in range(10)]


def _combining() -> Iterator[object]:
    codec = make_codec("int4", 64)
    # The last one is far too long, and left out by centered_clip.
    lengths = (1.0, 0.5, 1.25, 3.0, 200.0)
    work = [(work_of(20 + number) * np.float32(length)).astype(np.float32) for number, length in enumerate(lengths)]
    given = [(number, Terms(100 + number, 10, number % 2), codec.encode(values)) for number, values in enumerate(work)]
    for rule in ROUNDS.values():
        combined = combine(given, rule, codec, work[0].size)
        refused = [(one.member, one.offence) for one in combined.refused]
        yield combined.values.tobytes(), combined.included, refused


def _outer_step() -> Iterator[object]:
    anchor, momentum, gradient, change = (work_of(seed).copy() for seed in range(30, 34))
    for _ in range(3):
        outer_step_into(anchor, momentum, gradient, 0.7, 0.9, change)
        yield anchor.tobytes(), momentum.tobytes(), change.tobytes(), anchor_digest(anchor, momentum)
    for rule in ROUNDS.values():
        overlay = overlay_of(rule, gradient, momentum, 0.25)
        yield None if overlay is None else overlay.tobytes()


def _work_by_range() -> Iterator[object]:
    waiting = Waiting(1000, 10, 3)
    for number in range(12):
        more = Waiting(100 + number, 1 + number, 3 + number % 5)
        waiting = with_more(waiting, 20_007, more, 64 * 17 * number, min(20_007, 64 * 23 * number + 640))
        parts = [(part.end, part.tokens, part.steps, part.base_version) for part in waiting.parts]
        yield waiting.tokens, waiting.steps, waiting.base_version, parts


def _errors_by_range() -> Iterator[object]:
    errors, lost = BroadcastErrors(), keep_error(work_of(50), 64)
    assert lost is not None
    size = 16 * lost.block_size
    for start in (0, size, size // 2, 3 * size):
        errors.put(start, start + size, lost.slice_blocks(start, size))
    for start, end in ((0, size), (size // 4, 2 * size), (2 * size, 4 * size)):
        kept = errors.within(start, end)
        mean = work_of(51)[start:end].copy()
        add_error(kept, mean)
        yield mean.tobytes()


def _cuts_into_shards() -> Iterator[object]:
    lines = ([10e6] * 4, [8e6, 60e6, 20e6, 0.0], [1e6, 100e6], [0.0] * 5, [10e6 + 1e6 * number for number in range(9)])
    for num_values, rates in itertools.product((500, 20_007, 3_000_001), lines):
        for reachable in ([True] * len(rates), [number % 2 == 1 for number in range(len(rates))]):
            shards = plan_shards(num_values, 64, rates, reachable, 1.5)
            yield [(shard.start, shard.end, shard.reducer) for shard in shards]


def _cuts_into_fragments() -> Iterator[object]:
    layers = [(f"blocks.{number}.{name}", (32, 8)) for number in range(6) for name in ("a", "b")]
    shapes = [("embedding", (64, 32)), *layers, ("head", (32, 64))]
    for num_fragments, by in itertools.product((1, 3, 8), ("layers", "balanced")):
        layout = build_layout(shapes, num_fragments, by)
        yield layout.sizes, layout.digest


def _leaders() -> Iterator[object]:
    for version in range(20):
        yield rank_leaders("tiny.run", version % 3, version, MEMBERS)
    many = [PeerId(f"member{number}") for number in range(300)]
    yield sorted(next_contributors("tiny.run", 0, 7, many))


def _commit() -> Commit:
    roster = tuple(RosterEntry(peer, 1000 + 7 * number, 10, 3, 5) for number, peer in enumerate(MEMBERS))
    digest = bytes(range(DIGEST_BYTES))
    shards = (
        ShardResult(0, 8192, 0, digest, (0, 1, 2, 4)),
        ShardResult(8192, 12_032, 2, b"", ()),
        ShardResult(12_032, 20_007, 3, digest[::-1], (1, 3)),
    )
    return Commit(0, 3, 1, MEMBERS[0], bytes(DIGEST_BYTES), roster, shards, digest)


def _tokens_of_a_commit() -> Iterator[object]:
    yield _commit().tokens


def _credit() -> Iterator[object]:
    credited = round_of(_commit(), 100_000)
    yield credited.tokens, credited.milli_witnessed, [(share.peer_id, *share[1:]) for share in credited.shares]
    yield milli(1234, 567, 100_000)


def _statements() -> Iterator[object]:
    commit, scope = _commit(), Scope("tiny.run", bytes(range(32)))
    yield commit_digest(commit), commit_statement(scope, commit)
    yield mean_statement(scope, commit, commit.leader, commit.shards[0])
    sent = Contribution(0, 3, 1, MEMBERS[0], 0, 5, 0, 8192, 1000)
    yield contribution_statement(scope, sent, bytes(DIGEST_BYTES))


def _forks() -> Iterator[object]:
    counts = [Side(bytes([mark]) * 8, tokens, members) for mark, tokens, members in _sides()]
    for own, other in itertools.product(counts, counts):
        for num_known, comparable, elsewhere in itertools.product((3, 7), (False, True), (0, 2)):
            yield replaces(own, other, num_known, are_comparable=comparable, num_elsewhere=elsewhere)


def _sides() -> Iterator[tuple[int, int, int]]:
    for mark, (tokens, members) in enumerate(itertools.product((0, 100, 101, 5000), (1, 2, 3, 5))):
        yield mark, tokens, members


def _verdicts_on_means() -> Iterator[object]:
    codec, rule = make_codec("int4", 64), ROUNDS["centered clip"]
    given = [(number, Terms(100, 10, 0), codec.encode(work_of(40 + number))) for number in range(4)]
    right = combine(given, rule, codec, given[0][2].num_values).values
    for wrong in (0.0, 0.05, 0.15, 1.0, -2.0):
        mean = codec.encode((right * np.float32(1.0 + wrong)).astype(np.float32))
        yield is_wrong(given, mean, rule, codec), [suspicion(encoded, mean, codec) for _, _, encoded in given]


PARTS: Final[tuple[Callable[[], Iterator[object]], ...]] = (
    _encoding,
    _weights_and_rates,
    _combining,
    _outer_step,
    _work_by_range,
    _errors_by_range,
    _cuts_into_shards,
    _cuts_into_fragments,
    _leaders,
    _tokens_of_a_commit,
    _credit,
    _statements,
    _forks,
    _verdicts_on_means,
)


def _decoded(codec: Codec, values: F32) -> F32:
    decoded = np.empty_like(values)
    codec.decode(codec.encode(values), decoded)
    return decoded


def path_of(rules: int) -> Path:
    """The file with the digests of these rules."""
    return FOLDER / f"{rules}.json"


def main() -> None:
    if RULES in RELEASED:
        raise SystemExit(f"Rules {RULES} are released: their digests never change. Raise RULES in averaging/rules.py.")
    path_of(RULES).parent.mkdir(exist_ok=True)
    path_of(RULES).write_text(json.dumps(all_digests(), indent=1) + "\n")


if __name__ == "__main__":
    main()
