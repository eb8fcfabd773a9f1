"""Fragments in the shared memory of a mailbox: built, marked while they change, and kept for a restarted process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from averaging.codec.codec import Codec
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import ShardStore
from averaging.outer.fragment_anchor_and_residual import FragmentState
from averaging.outer.outer_settings import OuterRule
from averaging.outer.own_contributions import Sent
from averaging.rounds.leader import Leading
from averaging.rounds.round_machine import RoundMachine
from averaging.rounds.shard_plan import MOST_OF_MEDIAN
from averaging.rounds.waits import Waits
from averaging.signing.round_signatures import Notary
from averaging.transfer.snapshots import Snapshot
from averaging.trust.claim_guard import Guard
from averaging.trust.leader_trust import HOSTILE_SHARE
from dht.ground.host import PeerId
from peer.config.averaging_rules import buffer_codec_of
from peer.config.manifest import AveragingSection
from peer.mailbox.mailbox import Mailbox
from peer.mailbox.shared_memory import SharedFragment, fence


def build_fragments(
    me: PeerId,
    run_id: str,
    section: AveragingSection,
    rule: OuterRule,
    codec: Codec,
    mailbox: Mailbox,
    notary: Notary,
    guard: Guard | None = None,
    site_of: Callable[[PeerId], str] = lambda peer_id: "",
    leading_type: type[Leading] = Leading,
    of_buffers: int | None = None,
) -> list[FragmentRuntime]:
    """Build one runtime per fragment, whose arrays are the mailbox's. `guard` checks offers; None: all are accepted.

    `rule` and `codec` apply to parameters; `of_buffers` is the index of the fragment of running statistics.
    """
    of_parameters = rule, codec
    runtimes = []
    for index, (size, shared) in enumerate(zip(mailbox.sizes, mailbox.states, strict=True)):
        rule, codec = of_parameters
        if index == of_buffers:
            rule, codec = rule.of_buffers(), buffer_codec_of(codec)
        state = FragmentState(rule, codec, shared.anchor, shared.momentum, shared.residual)
        timing = Waits.with_bounds(section.round_deadline_seconds, section.num_fragments)
        machine = RoundMachine(
            me,
            run_id,
            index,
            size,
            codec.block_size,
            timing,
            notary,
            site_of=site_of,
            most_of_median=MOST_OF_MEDIAN if rule.is_strict else math.inf,
            least_share=HOSTILE_SHARE if rule.is_strict else 0.0,
            leading_type=leading_type,
            objection=(lambda *_: "") if guard is None else partial(guard.claim_objection, timing=timing),
            doubt=(lambda *_: False) if guard is None else partial(guard.doubts, timing=timing),
        )
        runtimes.append(
            FragmentRuntime(
                index,
                state,
                machine,
                ShardStore(codec, size),
                changing=partial(changing, mailbox, index, state),
                of_buffers=index == of_buffers,
                persist=partial(_persist_work, shared, state),
            )
        )
    return runtimes


@contextmanager
def changing(mailbox: Mailbox, index: int, state: FragmentState) -> Iterator[None]:
    """Mark the shared arrays as torn while they change, so that a restarted network process can detect it."""
    shared = mailbox.states[index]
    with shared.changing():
        yield
        _persist(shared, state)


def persist(mailbox: Mailbox, fragment: FragmentRuntime) -> None:
    """Write the values that a restarted network process needs in addition to the shared arrays."""
    _persist(mailbox.states[fragment.index], fragment.state)


def _persist(shared: SharedFragment, state: FragmentState) -> None:
    shared.version, shared.lineage_tokens, shared.digest = state.version, state.lineage_tokens, state.digest
    _persist_work(shared, state)


def inherited(shared: SharedFragment, codec: Codec) -> Sent | None:
    """Return the contribution that an earlier network process was sending; None if there is none."""
    if not shared.sent_sequence or not len(shared.sent):
        return None
    payload = bytes(shared.sent)
    encoded = codec.unpack(shared.anchor.size, payload)
    return Sent(
        shared.sent_sequence,
        encoded,
        shared.sent_tokens,
        shared.sent_steps,
        shared.sent_base_version,
        shared.sent_parts,
    )


def _persist_work(shared: SharedFragment, state: FragmentState) -> None:
    shared.unsent_tokens, shared.unsent_steps = state.unsent_tokens, state.unsent_steps
    shared.unsent_base_version, shared.unsent_parts = state.unsent_base_version, state.unsent_parts
    sent = state.pending
    if sent is None or not len(shared.sent):
        shared.sent_sequence = 0
    elif shared.sent_sequence != sent.sequence:
        # Written last: a reader that sees the sequence number sees all values.
        shared.sent_sequence = 0
        fence()
        place = 0
        for part in sent.encoded.pack():
            data = memoryview(part).cast("B")
            shared.sent[place : place + len(data)] = data
            place += len(data)
        shared.sent_tokens, shared.sent_steps = sent.tokens, sent.steps
        shared.sent_base_version, shared.sent_parts = sent.base_version, sent.parts
        fence()
        shared.sent_sequence = sent.sequence


def adopt_snapshot(state: FragmentState, snapshot: Snapshot) -> None:
    """Adopt an anchor fetched from the swarm."""
    state.adopt(snapshot.anchor, snapshot.momentum, snapshot.version, snapshot.lineage_tokens, snapshot.digest)
