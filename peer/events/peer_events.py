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
    "punched": "directly, by hole punching",
    "relayed": "through a relay",
}
_KEY_BEGINS: Final = "12D3KooW"
"""The first characters of every PeerId."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, when (unix seconds), and which peer reports it."""

    at: float
    peer_id: PeerId
    fact: Fact

    def sentence(self) -> str:
        """Return the fact as one sentence, without the time.

        The sentence holds only printable characters, because a reason may quote a remote. It calls the reporting peer
        "this peer" instead of quoting the end of its key, because the peer's owner reads the sentence.
        """
        told = printable(self.fact.sentence())
        if self.peer_id in self.named:
            own = short_peer(self.peer_id)
            for key, said in ((f"Peer {own}", "This peer"), (f"peer {own}", "this peer"), (own, "this peer")):
                told = told.replace(key, said)
        return told

    @property
    def named(self) -> set[PeerId]:
        """The peers whose keys the fact contains."""
        values = (getattr(self.fact, one.name) for one in fields(self.fact))
        said = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
        return {PeerId(one) for one in said if isinstance(one, str) and one.startswith(_KEY_BEGINS)}


@dataclass(frozen=True, slots=True)
class JoinedRun(Fact):
    """This peer joined the run; `versions` lists the versions of its anchors, one per fragment."""

    run_id: str
    device: str
    num_parameters: int
    versions: tuple[int, ...]
    budget_tokens: int | None = None
    """Number of tokens committed by the swarm at which the run's schedule ends."""
    earlier_inner_steps: int = 0
    """Inner steps of earlier sessions, read from this peer's checkpoint."""
    earlier_tokens: int = 0
    """Tokens of earlier sessions, read from the checkpoint or the log."""
    earlier_rounds: int = 0
    """Rounds contributed to in earlier sessions, read from the checkpoint or the log."""

    def sentence(self) -> str:
        place = "as a seed" if self.device == "seed" else f"on {self.device}"
        num_rounds = sum(self.versions)
        since = f"after {plural(num_rounds, 'round')} of the run" if num_rounds else "before the first round"
        return f"Joined {self.run_id} {place} with {count_text(self.num_parameters)} parameters, {since}."


@dataclass(frozen=True, slots=True)
class SwarmContact(Fact):
    """This peer is waiting for other members, lost contact with them, or found them again.

    `state` is "waiting" before the first answer (because of `reason`), "lost" when no member has answered for
    `seconds`, and "found" when `num_members` members answer again after `seconds`.
    """

    state: str
    seconds: float
    num_members: int = 0
    reason: str = ""
    is_training: bool = True
    """Whether this peer is training; false for a seed, and for a peer that is still catching up."""

    def sentence(self) -> str:
        if self.state == "waiting":
            since = f" for {seconds_text(round(self.seconds))}" if self.seconds >= 1 else ""
            return f"Waiting for peers{since}: {bare(self.reason)}."
        if self.state == "found":
            return f"Found the swarm again after {seconds_text(self.seconds)}: {plural(self.num_members, 'peer')}."
        what = "training continues alone" if self.is_training else "this peer keeps looking for them"
        return f"No other peer has answered for {seconds_text(self.seconds)}; {what}."


@dataclass(frozen=True, slots=True)
class MemberChanged(Fact):
    """Another member joined, left (`reason`), or is now reached by a different path (`path`).

    `path` is "direct", "punched" (directly, by hole punching) or "relayed".
    """

    remote: PeerId
    reason: str = ""
    path: str = ""

    @property
    def has_joined(self) -> bool:
        return not (self.reason or self.path)

    def sentence(self) -> str:
        if self.path:
            return f"This peer reaches {short_peer(self.remote)} {_PATHS.get(self.path, 'in an unknown way')}."
        return f"Peer {short_peer(self.remote)} {f'left: {bare(self.reason)}' if self.reason else 'joined'}."


@dataclass(frozen=True, slots=True)
class TrainingProgressed(Fact):
    """Totals of the inner loop, including earlier sessions.

    `wait_fraction` is the share of this session's time that the loop spent waiting.
    """

    inner_steps: int
    tokens: int
    train_loss: float | None
    tokens_per_second: float
    wait_fraction: float
    sent_abroad_bytes: int = 0
    """Bytes of rounds that the network process has sent to other sites since the process started."""
    run_tokens: int = 0
    """The run's clock: number of tokens that the whole swarm has committed."""
    learning_rate: float | None = None
    """Learning rate of the last inner step."""
    data_waits: int = 0
    """Number of times in this session that the loop had no data to read."""
    data_wait_seconds: float = 0.0
    """Total duration of these waits."""
    data_rereads: int = 0
    """Number of steps that reused earlier data while the loop was waiting for new data."""

    def sentence(self) -> str:
        if not self.inner_steps:
            done = f"{count_text(self.run_tokens)} tokens"
            return f"This peer has made no inner step so far; the swarm has committed {done}."
        loss = "loss not a number" if self.tokens_per_second else "no loss so far in this session"
        loss = loss if self.train_loss is None else f"loss {loss_text(self.train_loss)}"
        return (
            f"Inner step {self.inner_steps}: {loss}, {count_text(self.tokens)} tokens, "
            f"{count_text(self.tokens_per_second)} tokens/s, "
            f"{share_text(self.wait_fraction)} of the time waiting{self._data_waits_text()}."
        )

    def _data_waits_text(self) -> str:
        if not self.data_waits:
            return ""
        again = f", {plural(self.data_rereads, 'step')} reused data" if self.data_rereads else ""
        waited = f"{plural(self.data_waits, 'time')} for data, {seconds_text(self.data_wait_seconds)} in total"
        return f"; waited {waited}{again}"


@dataclass(frozen=True, slots=True)
class StateServed(Fact):
    """This peer sent `num_bytes` bytes of the run's state to `remote`, a member that is joining or catching up."""

    remote: PeerId
    num_bytes: int

    def sentence(self) -> str:
        return f"Sent {short_peer(self.remote)} {bytes_text(self.num_bytes)} of the run's state."


@dataclass(frozen=True, slots=True)
class Evaluated(Fact):
    """This peer measured the validation loss of the anchors.

    `version_sum` is the sum of the versions of all fragments. `validation_loss` is null if the loss is not a number.
    """

    validation_loss: float | None
    version_sum: int

    @property
    def evaluation(self) -> Evaluation | None:
        """The loss and its version sum, or None if the loss is not a number."""
        return None if self.validation_loss is None else Evaluation(self.validation_loss, self.version_sum)

    def sentence(self) -> str:
        loss = "not a number" if self.validation_loss is None else loss_text(self.validation_loss)
        return f"Validation loss {loss} after {plural(self.version_sum, 'commit')}."


@dataclass(frozen=True, slots=True)
class RefusedPeer(Fact):
    """This peer refused a remote, or something that the remote sent.

    `kinds` lists every kind of offence (`averaging.trust.exclusions.Offence`) since the remote was last forgiven.
    Rounds exclude the remote until `left_out_until` (unix seconds; null if they do not exclude the remote).
    """

    remote: PeerId
    reason: str
    kinds: tuple[str, ...] = ()
    left_out_until: float | None = None

    def sentence(self) -> str:
        return f"Refused peer {short_peer(self.remote)}: {bare(self.reason)}."


@dataclass(frozen=True, slots=True)
class ClockIsWrong(Fact):
    """This computer's clock differs from the clocks of most of the `num_members` members that answered."""

    seconds_ahead: float
    """Seconds by which this computer's clock is ahead; negative if it is behind."""
    num_members: int

    def sentence(self) -> str:
        where = "ahead of" if self.seconds_ahead > 0 else "behind"
        whose = (
            "the clock of the one member"
            if self.num_members == 1
            else f"most of the clocks of {self.num_members} members"
        )
        return (
            f"This computer's clock is {seconds_text(abs(self.seconds_ahead))} {where} {whose} that answered: set it, "
            "for example with `timedatectl set-ntp true`. Until then other members ignore this peer's announcements."
        )


@dataclass(frozen=True, slots=True)
class PartRestarted(Fact):
    """A process of this peer died and was restarted with the same identity.

    `part` is "daemon" (libp2p) or "network" (the network process). `seconds` is the time until the restart, or 0 if
    the time is unknown.
    """

    part: str
    reason: str = ""
    seconds: float = 0.0
    is_training: bool = True

    def sentence(self) -> str:
        name = "libp2p daemon" if self.part == "daemon" else "network process"
        after = f" after {seconds_text(self.seconds)}" if self.seconds else ""
        reason = f": {bare(self.reason)}" if self.reason else ""
        return f"The {name} died and was restarted{after}{reason}{'; training continued' if self.is_training else ''}."


@dataclass(frozen=True, slots=True)
class MicroBatchHalved(Fact):
    """The device ran out of memory, so the number of sequences per backward pass was reduced from `before` to `now`.

    The number of sequences per step stays the same: a step now makes more backward passes.
    """

    before: int
    now: int

    def sentence(self) -> str:
        return (
            f"Memory did not suffice for {plural(self.before, 'sequence')} per backward pass: "
            f"this peer now uses {self.now} per pass, and the step stays the same."
        )


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Fact):
    """This peer saved its state to the checkpoint at `path`; `versions` lists one version per fragment."""

    path: str
    versions: tuple[int, ...]

    def sentence(self) -> str:
        return f"Saved a checkpoint at versions {' '.join(map(str, self.versions))} to {self.path}."


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Fact):
    """This peer could not write a checkpoint, or could not read one and moved it aside to `kept_at`."""

    reason: str
    has_earlier: bool = True
    """Whether an earlier, complete checkpoint exists."""
    is_last: bool = False
    """Whether this peer is leaving the run."""
    kept_at: str = ""
    """New name of the unreadable checkpoint; empty if writing failed."""
    num_others: int = 0
    """Number of other members when the checkpoint could not be read."""

    def sentence(self) -> str:
        return self._unusable_text() if self.kept_at else self._unsaved_text()

    def _unsaved_text(self) -> str:
        kept = "the earlier checkpoint stays" if self.has_earlier else "there is no earlier checkpoint"
        if self.is_last:
            lost = "later work is lost here" if self.has_earlier else "work that no other member has is lost"
        else:
            lost = "work continues"
        return f"The checkpoint could not be saved: {bare(self.reason)}; {kept}, and {lost}."

    def _unusable_text(self) -> str:
        if self.has_earlier:
            goes_on = "this peer continues from the previous checkpoint"
        elif self.num_others:
            goes_on = "no other checkpoint is complete, so this peer downloads the model from the other members"
        else:
            goes_on = "no other checkpoint is complete and no other member is here, so training begins anew"
        return f"A checkpoint cannot be used: {bare(self.reason)}. It is kept as {self.kept_at}; {goes_on}."


@dataclass(frozen=True, slots=True)
class LeftRun(Fact):
    """This peer left the run; `inner_steps`, `tokens` and `rounds_contributed` are the totals of this session."""

    reason: str
    inner_steps: int
    tokens: int
    rounds_contributed: int

    def sentence(self) -> str:
        left = f"Left the run ({bare(self.reason)})"
        if not (self.inner_steps or self.tokens or self.rounds_contributed):
            return f"{left}."  # a seed, most often
        done = f"{plural(self.inner_steps, 'step')}, {count_text(self.tokens)} tokens"
        return f"{left} after {done} and contributions to {plural(self.rounds_contributed, 'round')}."


NOTED: Final = "the organiser notes: "
"""First words of `changes` if a revision only adds a note."""


@dataclass(frozen=True, slots=True)
class RunChanged(Fact):
    """A revision of the manifest took effect, or the run ended.

    `end_version` is the version at which the run ended, or null if the run continues.
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
        return f"Adopted revision {self.revision} of the manifest: {changes}."
