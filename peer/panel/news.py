"""News for people: what happened to them and to others in the run, in a few words each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from averaging.rounds.round_facts import WorkLost
from dht.ground.host import PeerId
from dht.ground.quantities import bytes_text, loss_text, plural
from peer.events import peer_events as events
from peer.events.anchor_events import AnchorRepair
from peer.panel.updates import RunFacts
from peer.view.own_view import OwnView

NewsKind = Literal["person", "own", "good", "trouble", "note"]

_AS_THEY_ARE = (
    events.CheckpointFailed,
    events.ClockIsWrong,
    events.PartRestarted,
    events.RunChanged,
    events.MicroBatchHalved,
)
"""Rare events whose own sentences are written for people, and are used as news."""
_PART_TAKEN = 0.01
"""Share of the model's bytes from which a transfer counts as more than looking at the run."""
ARRIVAL_SECONDS = 20.0
"""Time after joining in which records of earlier members arrive: two announcements."""
PRESENCE = "presence"
"""Topic of a member's arrival or departure."""


@dataclass(frozen=True, slots=True)
class NewsLine:
    """One line; `{who}` in its text is replaced by the owner of `remote`."""

    at: float
    kind: NewsKind
    text: str
    remote: PeerId | None = None
    topic: str = ""
    """Of several lines with the same topic and person only the newest is kept; empty: all are kept."""


def news_of(event: events.Event, before: OwnView, after: OwnView, run: RunFacts) -> list[NewsLine]:
    """Return the news for people in an event; most events have none.

    Args:
        before, after: the `OwnView` before and after the event.
        run: contains the unit of losses.
    """
    at, fact = event.at, event.fact
    match fact:
        case events.JoinedRun():
            doing = "serving" if fact.device == "seed" else f"training on {fact.device}"
            found = f", with {plural(len(after.others), 'other')} here" if after.others else ""
            return [] if before.run_id else [NewsLine(at, "own", f"You are in: {doing}{found}")]
        case events.MemberChanged(has_joined=True) if before.run_id and fact.remote not in before.met:
            # A member that was present before this peer did not join now.
            is_early = before.started_at is not None and at - before.started_at < ARRIVAL_SECONDS
            what = "is here" if is_early else "joined"
            if before.is_seed and fact.remote in before.served:
                what = "joined with model parts from this machine"
            return [NewsLine(at, "person", f"{{who}} {what}", fact.remote, PRESENCE)]
        case events.MemberChanged() if "goodbye" in fact.reason and fact.remote in before.others:
            # A member that only became unresponsive may return in a moment; meanwhile the figures show it.
            return [NewsLine(at, "person", "{who} left", fact.remote, PRESENCE)]
        case events.StateServed() if (
            before.is_seed and fact.remote in before.met and (fact.num_bytes >= _PART_TAKEN * 4 * before.num_parameters)
        ):
            # A peer that is not a member may be a page or an export; a newcomer is reported when it joins.
            took = f"{{who}} downloaded {bytes_text(fact.num_bytes)} of the model from here"
            return [NewsLine(at, "good", took, fact.remote, "taken")]
        case events.Evaluated() if (best := after.best_evaluation) is not None and best != before.best_evaluation:
            loss = loss_text(best.loss, run.loss_unit)
            if before.best_evaluation is None:
                return [NewsLine(at, "good", f"First validation loss: {loss}")]
            is_seen = loss != loss_text(before.best_evaluation.loss, run.loss_unit)
            return [NewsLine(at, "good", f"Best validation loss: {loss}", topic="best loss")] if is_seen else []
        case events.RefusedPeer() if fact.left_out_until is not None:
            return [NewsLine(at, "trouble", "{who} is left out of rounds for a while: " + fact.reason, fact.remote)]
        case AnchorRepair(is_done=False):
            # Normal on a busy machine: two peers closed different rounds, and only one of them can continue.
            kept = "" if before.is_seed else "; your unsent work is kept"
            told = f"The others' model contains more work: this machine downloads it{kept}"
            return [NewsLine(at, "person", told, topic="anchor")]
        case events.SwarmContact(state="lost") if before.is_seed:
            return [NewsLine(at, "person", "No other machine is here now")]
        case events.SwarmContact(state="lost"):
            what = "training continues alone" if fact.is_training else "looking for the others"
            return [NewsLine(at, "trouble", f"No other machine answers; {what}")]
        case events.SwarmContact(state="found"):
            return [NewsLine(at, "good", f"Found the others again: {fact.num_members} of them")]
        case events.LeftRun():
            return []
        case WorkLost() if fact.cause == "withheld":
            return [NewsLine(at, "trouble", event.sentence())]
        case _ if isinstance(fact, _AS_THEY_ARE):
            if isinstance(fact, events.RunChanged) and not fact.has_ended:
                return [note_of(at, event.sentence())]
            topic = "checkpoint" if isinstance(fact, events.CheckpointFailed) and not fact.kept_at else ""
            return [NewsLine(at, "trouble", event.sentence(), topic=topic)]
    return []


def note_of(at: float, sentence: str) -> NewsLine:
    """Return a note for the owner that is not an event; a repeated note is shown once."""
    return NewsLine(at, "note", sentence, topic=sentence)


def is_passed(old: NewsLine, new: NewsLine) -> bool:
    """Return whether the new line replaces the old one."""
    return bool(new.topic) and (old.topic, old.remote) == (new.topic, new.remote)
