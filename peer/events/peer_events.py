"""The event that wraps a fact, and facts about the peer itself: members, training, checkpoints, faults, the owner."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from averaging.rounds.round_facts import Fact, bare
from dht.ground.fields import printable
from dht.ground.host import PeerId
from dht.ground.quantities import bytes_text, count_text, loss_text, plural, seconds_text, share_text, short_peer
from dht.records.evaluation import Evaluation

_PATHS: Final = {
    "direct": "directly",
    "punched": "directly through a hole in both routers",
    "relayed": "through a relay",
}
_KEY_BEGINS: Final = "12D3KooW"
"""The first characters of every PeerId."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fact, the time when it happened (unix seconds), and the peer that reports it."""

    at: float
    peer_id: PeerId
    fact: Fact

    def sentence(self) -> str:
        """Return what happened, without the time, as printable text, because reasons may quote a remote.

        The reporter is "this peer" and not the end of its key, because the owner reads it.
        """
        told = printable(self.fact.sentence())
        if self.peer_id in self.named:
            own = short_peer(self.peer_id)
            for key, said in ((f"Peer {own}", "This peer"), (f"peer {own}", "this peer"), (own, "this peer")):
                told = told.replace(key, said)
        return told

    @property
    def named(self) -> set[PeerId]:
        """The peers whose keys are in the fact."""
        values = (getattr(self.fact, one.name) for one in fields(self.fact))
        said = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
        return {PeerId(one) for one in said if isinstance(one, str) and one.startswith(_KEY_BEGINS)}


@dataclass(frozen=True, slots=True)
class JoinedRun(Fact):
    """This peer became a member; `versions` are those of its anchors, one per fragment."""

    run_id: str
    device: str
    num_parameters: int
    versions: tuple[int, ...]
    budget_tokens: int | None = None
    """The swarm's tokens at which the run's schedule ends."""
    earlier_inner_steps: int = 0
    """Inner steps of earlier sessions, from this peer's checkpoint."""
    earlier_tokens: int = 0
    """Tokens of earlier sessions, from the checkpoint or the log; `earlier_rounds` likewise."""
    earlier_rounds: int = 0

    def sentence(self) -> str:
        place = "as a seed" if self.device == "seed" else f"on {self.device}"
        num_rounds = sum(self.versions)
        since = f"after {plural(num_rounds, 'round')} of the run" if num_rounds else "before the first round"
        return f"Joined {self.run_id} {place} with {count_text(self.num_parameters)} parameters, {since}."


@dataclass(frozen=True, slots=True)
class SwarmContact(Fact):
    """Other members answer again, or do not answer.

    `state` is "waiting" before the first answer (`reason`), "lost" when no member has answered for `seconds`, and
    "found" when `num_members` answer again.
    """

    state: str
    seconds: float
    num_members: int = 0
    reason: str = ""
    is_training: bool = True
    """Whether this peer trains; it may still be catching up, or be a seed."""

    def sentence(self) -> str:
        if self.state == "waiting":
            since = f" since {seconds_text(round(self.seconds))}" if self.seconds >= 1 else ""
            return f"Waiting for peers{since}: {bare(self.reason)}."
        if self.state == "found":
            return f"Found the swarm again after {seconds_text(self.seconds)}: {plural(self.num_members, 'peer')}."
        what = "training goes on alone" if self.is_training else "it looks for them again and again"
        return f"No other peer has answered for {seconds_text(self.seconds)}; {what}."


@dataclass(frozen=True, slots=True)
class MemberChanged(Fact):
    """Another member appeared, left (`reason`), or is reached in a new way (`path`).

    `path` is "direct", "punched" or "relayed".
    """

    remote: PeerId
    reason: str = ""
    path: str = ""

    @property
    def has_joined(self) -> bool:
        return not (self.reason or self.path)

    def sentence(self) -> str:
        if self.path:
            return f"Talks to {short_peer(self.remote)} {_PATHS.get(self.path, 'in an unknown way')}."
        return f"Peer {short_peer(self.remote)} {f'left: {bare(self.reason)}' if self.reason else 'joined'}."


@dataclass(frozen=True, slots=True)
class TrainingProgressed(Fact):
    """Totals of the inner loop, with earlier sessions; `wait_fraction` is the share of this session spent waiting."""

    inner_steps: int
    tokens: int
    train_loss: float | None
    tokens_per_second: float
    wait_fraction: float
    sent_abroad_bytes: int = 0
    """Bytes that the network process sent to other sites, in rounds, since it started."""
    run_tokens: int = 0
    """The run's clock: tokens that the whole swarm has committed."""
    learning_rate: float | None = None
    """The rate of the last inner step."""
    data_waits: int = 0
    """Times in this session that the loop had no data to read; they took `data_wait_seconds`."""
    data_wait_seconds: float = 0.0
    data_rereads: int = 0
    """Steps that read data again meanwhile."""

    def sentence(self) -> str:
        if not self.inner_steps:
            done = f"{count_text(self.run_tokens)} tokens"
            return f"No inner step of its own so far; the swarm has committed {done}."
        loss = "loss not a number" if self.tokens_per_second else "no loss since the start so far"
        loss = loss if self.train_loss is None else f"loss {loss_text(self.train_loss)}"
        return (
            f"Inner step {self.inner_steps}: {loss}, {count_text(self.tokens)} tokens, "
            f"{count_text(self.tokens_per_second)} tokens/s, "
            f"{share_text(self.wait_fraction)} of the time waiting{self._data_waits_text()}."
        )

    def _data_waits_text(self) -> str:
        if not self.data_waits:
            return ""
        again = f", {plural(self.data_rereads, 'step')} read data again" if self.data_rereads else ""
        return f"; waited {plural(self.data_waits, 'time')} for data, {seconds_text(self.data_wait_seconds)}{again}"


@dataclass(frozen=True, slots=True)
class StateServed(Fact):
    """A member that joins or catches up took `num_bytes` of the run's state from this peer."""

    remote: PeerId
    num_bytes: int

    def sentence(self) -> str:
        return f"Gave {short_peer(self.remote)} {bytes_text(self.num_bytes)} of the run's state."


@dataclass(frozen=True, slots=True)
class Evaluated(Fact):
    """The validation loss of the anchors; `version_sum` is the sum of the versions of all fragments."""

    validation_loss: float | None
    version_sum: int

    @property
    def evaluation(self) -> Evaluation | None:
        """The value; None: the loss was not a number."""
        return None if self.validation_loss is None else Evaluation(self.validation_loss, self.version_sum)

    def sentence(self) -> str:
        loss = "not a number" if self.validation_loss is None else loss_text(self.validation_loss)
        return f"Validation loss {loss} after {plural(self.version_sum, 'commit')}."


@dataclass(frozen=True, slots=True)
class RefusedPeer(Fact):
    """This peer refused a remote, or something that the remote sent.

    `kinds` (`averaging.trust.exclusions.Offence`) are all since the remote was last forgiven. Rounds exclude it until
    `left_out_until` (unix seconds; None: they do not exclude it for this).
    """

    remote: PeerId
    reason: str
    kinds: tuple[str, ...] = ()
    left_out_until: float | None = None

    def sentence(self) -> str:
        return f"Refused peer {short_peer(self.remote)}: {bare(self.reason)}."


@dataclass(frozen=True, slots=True)
class ClockIsWrong(Fact):
    """This computer's clock is `seconds_ahead` of the clocks of most of `num_members` members that answered."""

    seconds_ahead: float
    """Negative: it is behind."""
    num_members: int

    def sentence(self) -> str:
        where = "ahead of" if self.seconds_ahead > 0 else "behind"
        whose = (
            "that of the one member" if self.num_members == 1 else f"most of the clocks of {self.num_members} members"
        )
        return (
            f"This computer's clock is {seconds_text(abs(self.seconds_ahead))} {where} {whose} that answered: set it, "
            "for example with `timedatectl set-ntp true`. Until then other members ignore what this peer announces."
        )


@dataclass(frozen=True, slots=True)
class PartRestarted(Fact):
    """A process of this peer died and is back with the same identity.

    `part` is "daemon" (libp2p) or "network" (the network process); `seconds` is the time without it, 0 if unknown.
    """

    part: str
    reason: str = ""
    seconds: float = 0.0
    is_training: bool = True

    def sentence(self) -> str:
        name = "libp2p daemon" if self.part == "daemon" else "network process"
        after = f" after {seconds_text(self.seconds)}" if self.seconds else ""
        reason = f": {bare(self.reason)}" if self.reason else ""
        return f"The {name} died and is back{after}{reason}{'; training went on' if self.is_training else ''}."


@dataclass(frozen=True, slots=True)
class MicroBatchHalved(Fact):
    """The device ran out of memory with `before` sequences in a backward pass, which now has `now`.

    A step keeps its number of sequences and takes more passes.
    """

    before: int
    now: int

    def sentence(self) -> str:
        return (
            f"Memory did not suffice for {plural(self.before, 'sequence')} in one backward pass: "
            f"from now on {self.now} at a time, the step stays the same."
        )


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Fact):
    """This peer's state is on disk."""

    path: str
    versions: tuple[int, ...]

    def sentence(self) -> str:
        return f"Saved a checkpoint at versions {' '.join(map(str, self.versions))} to {self.path}."


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Fact):
    """This peer could not write its state, or (`kept_at`) it moved a checkpoint aside that it cannot read."""

    reason: str
    has_earlier: bool = True
    """There is an earlier checkpoint that is whole."""
    is_last: bool = False
    """This peer is leaving."""
    kept_at: str = ""
    """New name of the checkpoint that cannot be used; empty: writing failed."""
    num_others: int = 0
    """Members at the moment when a checkpoint could not be used."""

    def sentence(self) -> str:
        return self._unusable_text() if self.kept_at else self._unsaved_text()

    def _unsaved_text(self) -> str:
        kept = "the earlier one stays" if self.has_earlier else "there is no earlier one"
        if self.is_last:
            lost = "what came after it is lost here" if self.has_earlier else "what no other member has is lost"
        else:
            lost = "work goes on"
        return f"The checkpoint could not be saved: {bare(self.reason)}; {kept}, and {lost}."

    def _unusable_text(self) -> str:
        if self.has_earlier:
            goes_on = "this peer goes on from the one before it"
        elif self.num_others:
            goes_on = "no other one is whole, so this peer takes the model from the other members"
        else:
            goes_on = "no other one is whole and no other member is here, so the model begins anew"
        return f"A checkpoint cannot be used: {bare(self.reason)}. It is kept as {self.kept_at}; {goes_on}."


@dataclass(frozen=True, slots=True)
class LeftRun(Fact):
    """This peer left the run; the totals are those of its session."""

    reason: str
    inner_steps: int
    tokens: int
    rounds_contributed: int

    def sentence(self) -> str:
        left = f"Left the run ({bare(self.reason)})"
        if not (self.inner_steps or self.tokens or self.rounds_contributed):
            return f"{left}."  # a seed, most often
        done = f"{plural(self.inner_steps, 'step')}, {count_text(self.tokens)} tokens"
        return f"{left} after {done} and {plural(self.rounds_contributed, 'round')} contributed to."


NOTED: Final = "the organiser notes: "
"""The beginning of `changes` of a revision that only adds a note."""


@dataclass(frozen=True, slots=True)
class RunChanged(Fact):
    """A revision of the manifest, or the end of the run, took effect.

    `end_version` is the version at which the run ended; None: it goes on.
    """

    revision: int = 0
    changes: str = ""
    end_version: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.end_version is not None

    def sentence(self) -> str:
        if self.end_version is not None:
            return f"The run's owner ended the run at version {self.end_version}; this peer saves and stops."
        changes = bare(self.changes) or "nothing else differs"
        if changes.startswith(NOTED):
            return f"{changes[0].upper()}{changes[1:]}."
        return f"Took revision {self.revision} of the manifest: {changes}."
