"""Audits: members recompute means that others made, and exclude a member that signed a wrong mean.

A member that applies a commit audits one of its means at random, and no other member can predict which. (If the plan
chose the auditors, a reducer could tell when no audit threatens.) The auditor asks the members in that mean for the
shares that they sent to the reducer, which they keep for two rounds, and averages these shares again. Each member has
signed its share, and the reducer has signed its mean. The reducer answers the same request with the signatures on its
inputs. If the mean differs from the mean of the shares, the liar is the member that signed different inputs for the
auditor and for the reducer; if there is no such member, the liar is the reducer. The auditor excludes the liar from its
own rounds. It sends no message about the liar, since other peers could not trust it.

A member that does not show its share is to blame only if the reducer shows that member's signature. Without the
signature, the reducer is to blame.

If a mean points against a member's own work, or is far longer, the member audits the mean before it applies the commit
(`passes`). A member whose own work was too late for the commit compares too, see `averaging/trust/mean_checks.py`.
Gross lies therefore change no anchor. Audits at random find small lies, in a time that depends on `audit_fraction`.

Cost: with each audit, each member of the round uploads one more shard. In audited runs, means carry no error of earlier
broadcasts, because no other member could check that error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from averaging.codec.blocks import Buffer
from averaging.exchange.exchange_ports import Context
from averaging.fragment.runtime import FragmentRuntime
from averaging.fragment.shard_store import payload_digest, terms_of
from averaging.outer.own_contributions import Sent
from averaging.rounds.shard_plan import MAX_SHARD_VALUES
from averaging.trust.audit_budgets import OWN_BUDGET, AuditBudgets
from averaging.trust.mean_checks import is_wrong, suspicious
from averaging.wire.messages import (
    HISTORY_COMMITS,
    MAX_ROSTER,
    MAX_SHARDS,
    AuditInputs,
    AuditRequest,
    AuditShare,
    Commit,
    Contribution,
    Message,
    Plan,
    SignedInput,
    own_entry,
)
from dht.ground.bounds import Newest
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId

SHARES_SECONDS = 30.0
"""Least time for the members' answers: one shard over the slowest line of a member, queued behind the shards of a
round. If rounds take longer, answers may arrive for as long as members keep the audited shares."""
ASKED_AGAIN_SECONDS = 15.0
"""Time after which members that have not answered are asked again."""
HOLD_SECONDS = 15.0
"""A commit with a suspicious mean is held back for at most this time. Its members have the same reason to answer."""
MAX_OPEN = 8
"""Concurrent audits of one fragment; each holds one encoded fragment."""
MAX_EARLY = 256
"""Requests that wait for a commit: one for each auditor and fragment."""
KEPT_MEANS = HISTORY_COMMITS
"""Commits of each fragment whose means can be audited: the same number as for stored contributions."""
MAX_REMEMBERED = 64
"""Number of stored verdicts: enough for one mean of each commit in runs of many fragments."""

AUDIT_MESSAGES = (AuditRequest, AuditShare, AuditInputs)


@dataclass
class _Audit:
    """An audit of one mean at this peer."""

    commit: Commit
    shard: int
    mean: Buffer
    wanted: frozenset[int]
    shares: dict[int, tuple[AuditShare, bytes]] = field(default_factory=dict)
    inputs: tuple[SignedInput, ...] | None = None
    """The inputs that the reducer showed. None: the reducer has not answered."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    judged: asyncio.Event = field(default_factory=asyncio.Event)
    is_right: bool | None = None
    signs: Mapping[PeerId, int] = field(default_factory=dict)
    """Signs of life of the peers that have not answered, counted when they are asked again."""
    versions: dict[PeerId, int] = field(default_factory=dict)
    """Versions of the members when they answered."""

    @property
    def reducer(self) -> PeerId:
        return self.commit.holder(self.shard)

    @property
    def is_complete(self) -> bool:
        return self.inputs is not None and not self.missing

    @property
    def missing(self) -> list[int]:
        """Return the members whose shares have not arrived."""
        return sorted(self.wanted - set(self.shares))

    @property
    def is_late(self) -> bool:
        """Return whether the request reached most members so late that others may have dropped their shares.

        A single liar among several members that show theirs cannot make an audit late.
        """
        roster = self.commit.roster
        versions = [
            self.versions[roster[member].peer_id] for member in self.shares if roster[member].peer_id in self.versions
        ]
        return bool(versions) and statistics.median_high(versions) > self.commit.version + 1


Key = tuple[int, int, int, bytes]
"""(fragment, version, shard, digest of the mean)."""


class Audits:
    """Signs and checks inputs, audits means, answers auditors and judges, for one `Exchange`."""

    def __init__(self, context: Context) -> None:
        self.num_audits = 0
        self._context = context
        self._blame = context.guard.blame
        signs = itertools.count()
        self._signs_of = context.ports.signs_of or (lambda _peer_id: next(signs))
        self._open: dict[Key, _Audit] = {}
        self._verdicts: Newest[Key, bool] = Newest(MAX_REMEMBERED)
        self._inputs: dict[tuple[int, int], dict[tuple[int, int], tuple[SignedInput, ...]]] = {}
        """Inputs of own means, by (fragment, version) and range of values."""
        self._budgets, self._requests = (AuditBudgets(context.rule.audit_fraction) for _ in range(2))
        """Budgets of audits that this peer begins, and of auditors that ask for this peer's shares."""
        self._early: dict[tuple[PeerId, int], AuditRequest] = {}
        self._means: Newest[tuple[int, int], tuple[Commit, Mapping[int, Buffer]]]
        self._means = Newest(KEPT_MEANS * len(context.fragments))

    @property
    def is_on(self) -> bool:
        """Return whether this run audits means."""
        return self._context.rule.audit_fraction > 0

    # ------------------------------------------------------------------------------------------ sending and reducing

    def signed(self, header: Contribution, payload: Sequence[Buffer]) -> Contribution:
        """Return the header with this member's signature if this run audits means."""
        if not self.is_on:
            return header
        notary = self._context.fragments[header.fragment].machine.notary
        digest = payload_digest(b"".join(bytes(part) for part in payload))
        return replace(header, signature=notary.sign_contribution(header, digest))

    async def proven(
        self, fragment: FragmentRuntime, plan: Plan, leader: PeerId, shard: int, members: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the roster `members` that signed their contributions to a shard, and store the signatures."""
        if not self.is_on:
            return tuple(members)
        notary = fragment.machine.notary
        arrived = fragment.store.arrivals(plan.version, plan.attempt, leader, shard)

        def check() -> tuple[list[int], list[int], list[SignedInput]]:
            kept, unsigned, inputs = [], [], []
            for member in members:
                peer_id = plan.roster[member].peer_id
                if peer_id not in arrived:
                    kept.append(member)
                    continue
                header, payload = arrived[peer_id]
                digest = payload_digest(payload)
                if notary.is_contributors(peer_id, header, digest):
                    kept.append(member)
                    inputs.append(SignedInput(member, digest, header.signature))
                else:
                    unsigned.append(member)
            return kept, unsigned, inputs

        kept, unsigned, inputs = await self._context.ports.compute(check)
        for member in unsigned:
            what = f"its contribution to fragment {plan.fragment} does not carry its signature"
            self._blame(plan.roster[member].peer_id, "malformed", what, (plan.fragment, plan.version, "unsigned"))
        cut = plan.shards[shard]
        self._keep_inputs(fragment, plan.version, (cut.start, cut.end), tuple(inputs))
        return tuple(kept)

    def _keep_inputs(
        self, fragment: FragmentRuntime, version: int, values: tuple[int, int], inputs: tuple[SignedInput, ...]
    ) -> None:
        """Store the signatures of a round: at most as many as a peer needs that makes all means of a full roster.

        A leader that divides a round into more shards makes this peer forget inputs of that round only.
        """
        for place in list(self._inputs):
            if place[0] == fragment.index and not 0 <= version - place[1] <= KEPT_MEANS:
                del self._inputs[place]
        of_round = self._inputs.setdefault((fragment.index, version), {})
        of_round.pop(values, None)
        of_round[values] = inputs
        most = min(MAX_SHARDS, fragment.state.num_values // MAX_SHARD_VALUES + 2) * (MAX_ROSTER + 1)
        while sum(1 + len(each) for each in of_round.values()) > most:
            del of_round[next(iter(of_round))]

    # ---------------------------------------------------------------------------------------------------- auditing

    async def applied(self, fragment: FragmentRuntime, commit: Commit, payloads: Mapping[int, Buffer]) -> None:
        """Audit one of the means of an applied commit, at random."""
        if not self._can_audit(commit):
            return
        self._remember(fragment, commit, payloads)
        foreign = [
            index
            for index, shard in enumerate(commit.shards)
            if shard.digest and commit.holder(index) != self._context.me and index in payloads
        ]
        if not foreign:
            return
        if self._context.ports.chance() < self._context.rule.audit_fraction / len(commit.roster):
            self._begin(fragment, commit, foreign[int(self._context.ports.chance() * len(foreign))])

    async def passes(self, fragment: FragmentRuntime, commit: Commit, payloads: Mapping[int, Buffer]) -> bool:
        """Return whether a commit may be applied: no mean in it looks wrong, or audits found the suspicious means
        right.

        A commit whose members do not show their shares does not pass. The round is then closed again, without the
        members that are excluded by then.
        """
        if not self._can_audit(commit):
            return True
        self._remember(fragment, commit, payloads)
        audits: list[_Audit] = []
        for index in await self._context.ports.compute(lambda: self._suspicious(fragment, commit, payloads)):
            self._begin(fragment, commit, index)
            key = (fragment.index, commit.version, index, commit.shards[index].digest)
            if not self._verdicts.get(key, True):
                return False
            if key in self._open:
                audits.append(self._open[key])
        for audit in audits:
            await until(audit.judged.is_set, audit.judged, HOLD_SECONDS)
        return all(audit.is_right for audit in audits)

    def _can_audit(self, commit: Commit) -> bool:
        return self.is_on and len(commit.roster) > 1

    def _remember(self, fragment: FragmentRuntime, commit: Commit, payloads: Mapping[int, Buffer]) -> None:
        """Keep a commit for audits of its means, and answer the auditors that asked for it early."""
        self._means[fragment.index, commit.version] = (commit, payloads)
        for sender, index in [key for key in self._early if key[1] == fragment.index]:
            self._answer(fragment, sender, self._early.pop((sender, index)))

    def _post(self, to: PeerId, message: Message, payload: bytes = b"") -> None:
        self._context.links.send(to, message, [payload] if payload else ())

    def _suspicious(self, fragment: FragmentRuntime, commit: Commit, payloads: Mapping[int, Buffer]) -> list[int]:
        """Return the indices of other peers' means that look wrong."""
        foreign = {
            index: fragment.state.codec.unpack(commit.shards[index].end - commit.shards[index].start, payload)
            for index, payload in payloads.items()
            if commit.holder(index) != self._context.me
        }
        own, member = _own_work(fragment, commit, self._context.me)
        return suspicious(commit, foreign, own, member, fragment.state.codec)

    def _begin(self, fragment: FragmentRuntime, commit: Commit, index: int) -> None:
        key = (fragment.index, commit.version, index, commit.shards[index].digest)
        held = self._means.get((fragment.index, commit.version))
        num_open = sum(other[0] == fragment.index for other in self._open)
        if key in self._open or key in self._verdicts or held is None or index not in held[1] or num_open >= MAX_OPEN:
            return
        place = (fragment.index, fragment.machine.version, len(commit.roster))
        if not self._budgets.spend(self._context.me, *place, OWN_BUDGET):
            return
        audit = _Audit(commit, index, held[1][index], frozenset(commit.shards[index].included))
        self._open[key] = audit
        self.num_audits += 1
        self._context.spawn(self._look(fragment, audit, key))

    async def _look(self, fragment: FragmentRuntime, audit: _Audit, key: Key) -> None:
        try:
            await self._collect(fragment, audit)
            if audit.missing:
                self._name_the_evasive(fragment, audit)
                return
            shard = audit.commit.shards[audit.shard]
            shares = sorted(audit.shares.items())
            terms = [terms_of(self._context.rule, audit.commit, member, shard.start, shard.end) for member, _ in shares]
            unpack = partial(fragment.state.codec.unpack, shard.end - shard.start)

            def judge() -> bool:
                inputs = [
                    (member, term, unpack(payload)) for (member, (_, payload)), term in zip(shares, terms, strict=True)
                ]
                return is_wrong(inputs, unpack(audit.mean), self._context.rule, fragment.state.codec)

            if await self._context.ports.compute(judge):
                self._name_the_liar(fragment, audit)
            else:
                audit.is_right = True
        finally:
            self._verdicts[key] = audit.is_right = bool(audit.is_right)
            audit.judged.set()
            del self._open[key]

    async def _collect(self, fragment: FragmentRuntime, audit: _Audit) -> None:
        commit, shard = audit.commit, audit.commit.shards[audit.shard]
        request = AuditRequest(fragment.index, commit.version, shard.start, shard.end)
        for peer_id in self._unanswered(audit):
            if peer_id != self._context.me:
                self._post(peer_id, request)
        me = own_entry(commit.roster, self._context.me)
        if me is not None and me[0] in audit.wanted and (own := self._own_share(fragment, request)):
            audit.shares[me[0]] = own
        await until(lambda: audit.is_complete, audit.changed, ASKED_AGAIN_SECONDS)
        unanswered = self._unanswered(audit)
        audit.signs = {peer_id: self._signs_of(peer_id) for peer_id in unanswered}
        for peer_id in unanswered:
            # Ask again: a link may have broken, or a flood of requests may have displaced this one before the commit
            # arrived.
            self._post(peer_id, request)
        timing = fragment.machine.timing
        seconds = max(SHARES_SECONDS, KEPT_MEANS * (timing.interval_seconds or timing.hard_seconds))
        await until(lambda: audit.is_complete, audit.changed, seconds - ASKED_AGAIN_SECONDS)

    def _unanswered(self, audit: _Audit) -> list[PeerId]:
        peer_ids = [audit.commit.roster[member].peer_id for member in audit.missing]
        return peer_ids if audit.inputs is not None or audit.reducer in peer_ids else [*peer_ids, audit.reducer]

    def _name_the_evasive(self, fragment: FragmentRuntime, audit: _Audit) -> None:
        """Blame peers that are alive but do not show their inputs: they hide a lie, their own or a friend's.

        A member must show only what it signed. The reducer therefore shows the signatures on its inputs, since it may
        list members in its mean that sent nothing. A sleeping machine is still among the members, but gives no sign of
        life.
        """
        missing = [audit.commit.roster[member].peer_id for member in audit.missing]
        live = {peer_id for peer_id, signs in audit.signs.items() if self._signs_of(peer_id) > signs}
        signed = self._signers(fragment, audit)
        # If most shares are missing, this peer's own line is the likelier cause.
        is_own_fault = audit.is_late or len(missing) > len(audit.wanted) / 2
        is_lie = audit.inputs is not None and not signed.issuperset({*missing} - {audit.reducer})
        is_silent = (audit.inputs is None or audit.reducer in missing) and audit.reducer in live
        evidence = (fragment.index, audit.commit.version, "evasive")
        if is_lie or (is_silent and not is_own_fault):
            what = f"did not show which contributions its mean of fragment {fragment.index} contains"
            self._blame(audit.reducer, "evasive", what, evidence)
        for peer_id in missing if not is_own_fault else ():
            if peer_id in live & signed & {*self._context.members()} and peer_id != self._context.me:
                what = f"did not show its contribution to {audit.reducer} for fragment {fragment.index}"
                self._blame(peer_id, "evasive", what, evidence)

    def _signers(self, fragment: FragmentRuntime, audit: _Audit) -> set[PeerId]:
        """Return the members whose signatures the reducer showed on the contributions in the roster."""
        found, commit, shard = set(), audit.commit, audit.commit.shards[audit.shard]
        for given in audit.inputs or ():
            if given.member not in audit.wanted:
                continue
            entry = commit.roster[given.member]
            values = (shard.start, shard.end)
            sent = AuditShare(
                *(fragment.index, commit.version, entry.sequence, *values, entry.tokens), signature=given.signature
            )
            if fragment.machine.notary.is_contributors(entry.peer_id, sent, given.digest):
                found.add(entry.peer_id)
        return found

    def _name_the_liar(self, fragment: FragmentRuntime, audit: _Audit) -> None:
        commit, shard = audit.commit, audit.commit.shards[audit.shard]
        evidence = (fragment.index, commit.version, audit.shard)
        for liar in self._two_faced(fragment, audit):
            what = f"signed two contributions to values [{shard.start}, {shard.end}) of fragment {fragment.index}"
            self._blame(liar, "two_faced", what, evidence)
            return
        what = (
            f"signed a mean of values [{shard.start}, {shard.end}) of fragment {fragment.index} at version "
            f"{commit.version} that differs from the mean of its {len(audit.shares)} signed contributions"
        )
        self._blame(audit.reducer, "wrong_mean", what, evidence)

    def _two_faced(self, fragment: FragmentRuntime, audit: _Audit) -> list[PeerId]:
        """Return the members that signed different contributions for the reducer and the auditor."""
        found = []
        for given in audit.inputs or ():
            share = audit.shares.get(given.member)
            if share is None or payload_digest(share[1]) == given.digest:
                continue
            peer_id = audit.commit.roster[given.member].peer_id
            other = replace(share[0], signature=given.signature)
            if fragment.machine.notary.is_contributors(peer_id, other, given.digest):
                found.append(peer_id)
        return found

    # --------------------------------------------------------------------------------------------------- answering

    def hear(
        self, fragment: FragmentRuntime, sender: PeerId, message: Message, payload: memoryview, _frame_bytes: int
    ) -> bool:
        """Handle a message of an audit.

        Raises:
            PeerFault: the payload has the wrong size.
        """
        if not self.is_on:
            return False
        if isinstance(message, AuditRequest):
            self._answer(fragment, sender, message)
        elif isinstance(message, AuditShare):
            self._take_share(fragment, sender, message, payload)
        elif isinstance(message, AuditInputs):
            self._take_inputs(sender, message)
        return False

    def note_version(self, fragment: FragmentRuntime, sender: PeerId, version: int) -> None:
        """Note the version that a member has when it answers."""
        for (index, *_), audit in self._open.items():
            if index == fragment.index and own_entry(audit.commit.roster, sender) is not None:
                audit.versions.setdefault(sender, version)

    def _answer(self, fragment: FragmentRuntime, sender: PeerId, request: AuditRequest) -> None:
        is_here = (fragment.index, request.version) in self._means
        if not is_here and fragment.machine.version <= request.version <= fragment.machine.version + 1:
            # The auditor has applied a commit that has not arrived here.
            if (sender, fragment.index) in self._early or len(self._early) < MAX_EARLY:
                self._early[sender, fragment.index] = request
            return
        held = self._means.get((fragment.index, request.version))
        if held is None or not _is_a_shard(held[0], request):
            return
        # Checked before the share is made, which takes a signature and a pass over the values.
        place = (fragment.index, fragment.machine.version, len(held[0].roster))
        is_member = own_entry(held[0].roster, sender) is not None or sender in self._context.members()
        if not self._requests.answers(sender, request, *place, is_member=is_member):
            return
        values = (request.start, request.end)
        inputs = self._inputs.get((fragment.index, request.version), {}).get(values)
        if inputs is not None:
            self._post(sender, AuditInputs(fragment.index, request.version, *values, inputs))
        if share := self._own_share(fragment, request):
            # An auditor on a starved machine asks when other members have dropped their shares already.
            self._post(sender, fragment.machine.version_is())
            self._post(sender, *share)

    def _own_share(self, fragment: FragmentRuntime, request: AuditRequest) -> tuple[AuditShare, bytes] | None:
        """Return the part of this peer's contribution to that version that covers the shard's values."""
        own = _sent_for(fragment, request.version)
        if own is None:
            return None
        blocks = own.encoded.slice_blocks(request.start, request.end - request.start)
        payload = b"".join(bytes(part) for part in blocks.pack())
        share = AuditShare(
            *(fragment.index, request.version, own.sequence, request.start, request.end, own.tokens),
            signature=bytes(64),
        )
        signature = fragment.machine.notary.sign_contribution(share, payload_digest(payload))
        return replace(share, signature=signature), payload

    def _take_share(self, fragment: FragmentRuntime, sender: PeerId, share: AuditShare, payload: memoryview) -> None:
        expected = fragment.state.codec.encoded_num_bytes(share.end - share.start)
        if len(payload) != expected:
            raise PeerFault(sender, f"sent {len(payload)} bytes in an audit_share; expected {expected}")
        for (index, version, shard, _), audit in self._open.items():
            cut = audit.commit.shards[shard]
            if (index, version) != (share.fragment, share.version) or (cut.start, cut.end) != (share.start, share.end):
                continue
            member = own_entry(audit.commit.roster, sender)
            if member is None or member[0] not in audit.wanted or member[0] in audit.shares:
                continue
            if (share.sequence, share.tokens) != (member[1].sequence, member[1].tokens):
                continue
            data = bytes(payload)
            if fragment.machine.notary.is_contributors(sender, share, payload_digest(data)):
                audit.shares[member[0]] = (share, data)
                audit.changed.set()

    def _take_inputs(self, sender: PeerId, shown: AuditInputs) -> None:
        for (index, version, shard, _), audit in self._open.items():
            cut = audit.commit.shards[shard]
            is_of_mean = (index, version, cut.start, cut.end) == (shown.fragment, shown.version, shown.start, shown.end)
            if is_of_mean and sender == audit.reducer and audit.inputs is None:
                audit.inputs = shown.inputs
                audit.changed.set()


async def until(is_so: Callable[[], bool], changed: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not is_so():
                changed.clear()
                await changed.wait()


def _is_a_shard(commit: Commit, request: AuditRequest) -> bool:
    return any((shard.start, shard.end) == (request.start, request.end) for shard in commit.shards)


def _sent_for(fragment: FragmentRuntime, version: int) -> Sent | None:
    state = fragment.state
    return fragment.store.own_work.get(version) or (state.pending if version == state.version else None)


def _own_work(fragment: FragmentRuntime, commit: Commit, me: PeerId) -> tuple[Sent | None, int | None]:
    """Return this peer's contribution to the commit and its number in the roster, or, if it has none there, its latest
    stored work and None.
    """
    state, entry, sent = fragment.state, own_entry(commit.roster, me), _sent_for(fragment, commit.version)
    if entry is not None and sent is not None and entry[1].sequence == sent.sequence:
        return sent, entry[0]
    own_work = fragment.store.own_work
    return state.pending or own_work.get(max(own_work, default=0)), None
