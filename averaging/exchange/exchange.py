"""Async shell around the round machines: takes messages and performs effects.

An exchange has three roles: sending own work (`sending.py`), reducing (`reducing.py`) and applying commits
(`applying.py`). It passes each message to a role or to the fragment's machine, and each effect of the machine to a
role. Work on arrays goes through the `compute` port. The exchange never waits for the trainer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from averaging.exchange.applying import Applying
from averaging.exchange.audit import AUDIT_MESSAGES, Audits
from averaging.exchange.commit_questions import CommitQuestions
from averaging.exchange.exchange_ports import Context, ExchangePorts
from averaging.exchange.reducing import Averaging
from averaging.exchange.sending import Sending
from averaging.fragment.runtime import FragmentRuntime
from averaging.lanes.links import Links
from averaging.outer.outer_settings import OuterRule
from averaging.rounds import machine_events
from averaging.rounds.machine_events import Advanced, ContributionArrived, Event, Heard, Lost, Tick, View
from averaging.rounds.round_facts import AppliedCommit, Fact
from averaging.trust.claim_guard import Guard
from averaging.wire import messages
from averaging.wire.messages import DIGEST_BYTES, HISTORY_COMMITS, Abandon, Commit, Message, Offer
from dht.ground.bounds import Newest
from dht.ground.host import PeerId
from dht.ground.tasks import Background

Hear = Callable[[FragmentRuntime, PeerId, Any, memoryview, int], bool]
"""(fragment, sender, message, payload, bytes of the frame); returns whether the fragment's machine gets the message
too."""
Perform = Callable[[FragmentRuntime, Any], None]


MAX_LOST = 256
"""Lost peers that are remembered: as many as a round has members."""
TAKING_PART = (Offer, messages.Wait, messages.Plan, messages.Contribution, messages.Reduced)
"""Messages that only members of rounds send. Peers that only push commits or ask questions send none of them."""


class Exchange:
    """Rounds of all fragments of one run at one peer; see the module docstring."""

    def __init__(
        self,
        me: PeerId,
        rule: OuterRule,
        fragments: Sequence[FragmentRuntime],
        guard: Guard,
        links: Links,
        ports: ExchangePorts,
        first_sequence: int,  # higher than that of any contribution that an earlier process sent
    ) -> None:
        self.me = me
        self.fragments = list(fragments)
        self.guard = guard
        self._links, self._ports = links, ports
        self._seen: tuple[Sequence[PeerId], Sequence[PeerId], Sequence[PeerId]] = ((), (), ())
        self._views: dict[int, View] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._questions = CommitQuestions()
        self._closed = False
        self._background = Background()
        self._lost: Newest[PeerId, None] = Newest(MAX_LOST)
        context = Context(
            me,
            rule,
            self.fragments,
            guard,
            links,
            ports,
            members=lambda: (*self._seen[0], *self._seen[1]),
            lost=self._lost,
            step=self._step,
            spawn=self._background.spawn,
        )
        self.audits = audits = Audits(context)
        self.applying = applying = Applying(context, audits, self._advanced, self._go_on)
        self.sending = sending = Sending(context, first_sequence, audits.signed, applying.is_repairing)
        self.averaging = averaging = Averaging(context, sending, audits, applying.result_arrived)
        self._hear: Mapping[type, Hear] = {
            **dict.fromkeys(AUDIT_MESSAGES, audits.hear),
            messages.Contribution: averaging.take_contribution,
            messages.Result: applying.take_result,
            messages.ResultRequest: lambda *heard: applying.give_result(*heard[:3]),
            messages.VersionIs: lambda *heard: applying.hear_version(*heard[:3]),
            Commit: self._check_commit,
            object: lambda *_: True,
        }
        self._perform: Mapping[type, Perform] = {
            machine_events.SendMessage: self._send_message,
            machine_events.SendShards: sending.send_shards,
            machine_events.ReduceShard: averaging.reduce,
            machine_events.SendResult: averaging.send_result,
            machine_events.Apply: applying.apply,
            machine_events.Repair: applying.ask_repair,
            machine_events.WronglySigned: lambda _, effect: guard.blame(effect.peer_id, "misfit", effect.what),
            Fact: lambda _, fact: ports.report(fact),
        }

    def set_view(self, trainers: Sequence[PeerId], followers: Sequence[PeerId], silent: Sequence[PeerId] = ()) -> None:
        """Set the members with live records: trainers, all others, and trainers that do not answer now.

        `MemberPresence` decides which of them count, from their behaviour.
        """
        self._seen = (trainers, followers, silent)
        excluded = self.guard.excluded([*trainers, *silent])
        live, unanswered = ([one for one in peer_ids if one not in excluded] for peer_ids in (trainers, silent))
        seen = self.guard.presence.see(live, unanswered)
        # Peers that are excluded from rounds, or do not count yet, still get commits.
        others = [peer_id for peer_id in trainers if peer_id not in seen.trainers and peer_id != self.me]
        view = replace(seen, followers=(*followers, *others))
        for fragment in self.fragments:
            if self._views.get(fragment.index) != view:
                self._views[fragment.index] = view
                self._step(fragment, view)

    def exclude(self) -> None:
        """Update the view after the guard has excluded another peer."""
        self.set_view(*self._seen)

    def peer_lost(self, peer_id: PeerId, reason: str) -> None:
        self._lost[peer_id] = None
        self.applying.peer_lost(peer_id)
        self.averaging.peer_lost(peer_id)
        for fragment in self.fragments:
            self._step(fragment, Lost(peer_id, reason))

    def on_message(self, sender: PeerId, message: Message, payload: memoryview, frame_bytes: int) -> None:
        """Handle a checked frame from an admitted peer (see `Links`).

        Raises:
            PeerFault: the payload has the wrong size, a commit is not signed by its leader, or the sender exceeds its
                share of memory here.
        """
        fragment = self.fragments[message.fragment]
        self._lost.pop(sender, None)
        if isinstance(message, TAKING_PART) and self.guard.presence.take_part(sender):
            self.set_view(*self._seen)
        if self._questions.is_one_too_many(fragment.machine, sender, message, asyncio.get_running_loop().time()):
            return
        if reason := self.guard.objection(sender, message, fragment.machine):
            self._refuse(fragment, sender, message, reason)
        elif _row(self._hear, message)(fragment, sender, message, payload, frame_bytes):
            # Messages to a leader do not count towards a member's round.
            if fragment.machine.is_offering and not isinstance(message, Offer | messages.Reduced):
                fragment.traffic.received(frame_bytes)
            self._step(fragment, Heard(sender, message))

    async def close(self) -> None:
        self._closed = True
        self.sending.take_part(False)
        for timer in self._timers.values():
            timer.cancel()
        await self._background.close()

    # ------------------------------------------------------------------------------------------------------ details

    def _refuse(self, fragment: FragmentRuntime, sender: PeerId, message: Message, reason: str) -> None:
        if isinstance(message, Offer):
            self._links.send(sender, Abandon(fragment.index, message.version, message.attempt, reason))
        if isinstance(message, Commit) and self.guard.gives_up(sender, message, fragment.machine):
            self._step(fragment, Lost(message.leader, reason))

    def _check_commit(self, fragment: FragmentRuntime, sender: PeerId, commit: Commit, *_: object) -> bool:
        self.guard.check_leader(sender, commit, fragment.machine)
        return True

    def _step(self, fragment: FragmentRuntime, event: Event) -> None:
        if self._closed:
            return
        for effect in fragment.machine.step(event, self._ports.clock()):
            _row(self._perform, effect)(fragment, effect)
        if (timer := self._timers.pop(fragment.index, None)) is not None:
            timer.cancel()
        when = fragment.machine.next_time
        if when < math.inf:
            delay, loop = max(0.0, when - self._ports.clock()), asyncio.get_running_loop()
            self._timers[fragment.index] = loop.call_later(delay, self._step, fragment, Tick())

    def _send_message(self, fragment: FragmentRuntime, effect: machine_events.SendMessage) -> None:
        num_bytes = self._links.send(effect.to, self._ports.parts.says(effect.message))
        if fragment.machine.is_offering and not isinstance(effect.message, Commit | messages.Plan):
            fragment.traffic.sent(num_bytes)

    def _go_on(self, fragment: FragmentRuntime) -> None:
        self._background.spawn(self.sending.offer(fragment))

    def _advanced(self, fragment: FragmentRuntime, adopted: tuple[Commit, ...] | None) -> None:
        """Report that a fragment is at another version, and begin its next round."""
        state, guard = fragment.state, self.guard
        fragment.store.prune(state.version, state.version - HISTORY_COMMITS)
        self.averaging.advanced(fragment)
        timing, is_adopted = fragment.machine.timing, adopted is not None
        guard.advanced(fragment.index, state.version, timing, is_adopted=is_adopted)
        self._ports.report(AppliedCommit(fragment.index, state.version, state.digest.hex()))
        passed_over = frozenset(guard.leaders.passed_over(self._ports.clock()))
        head = (state.version, state.digest[:DIGEST_BYTES], state.lineage_tokens)
        others_count = guard.presence.follow(fragment.index, _led_here(fragment, adopted))
        self._step(fragment, Advanced(*head, adopted, passed_over))
        if others_count:
            self.set_view(*self._seen)
        for sender, attempt, leader, shard in fragment.store.arrived(state.version):
            self._step(fragment, ContributionArrived(sender, attempt, leader, shard))
        self._go_on(fragment)


def _led_here(fragment: FragmentRuntime, adopted: tuple[Commit, ...] | None) -> list[Commit]:
    """Return the known commits that led to a fragment's anchor, the newest last."""
    machine, version = fragment.machine, fragment.state.version
    commits = (*machine.log.newest.values(), machine.applying) if adopted is None else adopted
    return sorted(
        (commit for commit in commits if commit is not None and commit.version < version),
        key=lambda commit: commit.version,
    )


def _row(table: Mapping[type, Callable[..., Any]], value: object) -> Callable[..., Any]:
    """Return the row of a value's type, or of its nearest base class."""
    return next(table[kind] for kind in type(value).__mro__ if kind in table)
