"""Scene: the state from which pictures are drawn, computed from events, notes and updates. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dht.ground.host import PeerId
from dht.ground.quantities import plural, short_peer
from dht.identity.join_link import join_link
from dht.identity.speakable import speakable_name
from peer.events import peer_events as events
from peer.events.lone_rounds import LONE_ROUNDS
from peer.panel import updates
from peer.panel.checklist import Checklist
from peer.panel.news import NewsLine, is_passed, news_of, note_of
from peer.view.own_view import OwnView, known_run, own_view_after
from peer.view.run_view import RunView
from peer.view.swarm_seen import OwnAddresses, SwarmSeen

MAX_NEWS = 60
"""Number of news lines kept, more than the tallest terminal shows."""
MAX_NAMES = 5000
SETTLE_SECONDS = 20.0
"""Time after the arrival of others in which they have not taken part in a round yet."""
NOTHING: Mapping[PeerId, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of a view. Times are unix seconds."""

    own: OwnView = field(default_factory=OwnView)
    is_seed: bool = False
    loading: Checklist = field(default_factory=Checklist)
    run: updates.RunFacts = field(default_factory=lambda: updates.RunFacts(""))
    swarm: SwarmSeen = field(default_factory=lambda: SwarmSeen(at=0.0))
    names: Mapping[PeerId, str] = field(default_factory=lambda: NOTHING)
    news: tuple[NewsLine, ...] = ()
    limits: updates.LineLimits = field(default_factory=updates.LineLimits)
    is_resting: bool = False
    resting_at: float = 0.0
    """Time at which the owner last paused training."""
    has_network: bool = True
    """False: this machine has no address now."""
    is_compiling: bool = False
    """Whether the first step of this session is still being compiled."""
    leaving: str = ""
    """The remaining work before this peer leaves; empty: it was not asked to leave."""
    addresses: tuple[str, ...] = ()
    given_command: str = ""
    """The command with which others join, if given."""
    listening: tuple[str, ...] = ()
    """Addresses on which a seed listens, with the chosen ports, for links."""
    same_again: Callable[[updates.LineLimits, Sequence[str]], str] = lambda limits, listening: ""
    """Returns the command that restarts this peer with these limits and addresses; empty: a plain command suffices."""
    met_at: float = -math.inf
    """Time at which this peer saw other trainers again, after a time without any."""
    began_at: float = 0.0
    """Start of this process, from which a seed counts as up, even without a trainer. 0: unknown."""
    is_ended_for_good: bool = False
    """Whether this peer ended for a reason that also affects the next start."""

    def name_of(self, peer_id: PeerId) -> str:
        """Return the name of a key's owner."""
        return self.names.get(peer_id) or speakable_name(peer_id)

    def sentence_of(self, event: events.Event) -> str:
        """Return an event's sentence with names instead of shortened keys."""
        told = event.sentence()
        for peer_id in event.named:
            told = told.replace(short_peer(peer_id), self.name_of(peer_id))
        return told

    @property
    def num_others(self) -> int:
        """Number of other machines in the run, including seeds: the number called others in all views."""
        if self.own.phase in ("training alone", "alone"):
            return 0
        return self.swarm.num_others if self.swarm.at else len(self.own.others)

    @property
    def num_training(self) -> int:
        """Number of machines that train, including this one; 0 for a seed without others, whatever old
        records contain.
        """
        return self.swarm.run.num_training if self.num_others or not self.is_seed else 0

    @property
    def view(self) -> RunView:
        """The run's figures."""
        return known_run(self.own, self.swarm.run)

    @property
    def is_left_alone(self) -> bool:
        """Whether no other member is present now although others were."""
        return not self.num_others and bool(self.own.met or self.swarm.num_silent)

    @property
    def others_here(self) -> str:
        """The number of others in words, with those that do not answer."""
        silent = f", {self.swarm.num_silent} not answering" if self.swarm.num_silent else ""
        return f"{plural(self.num_others, 'other')} here{silent}"

    @property
    def lone_rounds(self) -> int:
        """Number of the newest consecutive rounds with one member, once they are too many for chance.

        Rounds before other members were present do not count, nor do the first moments with others.
        """
        is_chance = self.own.lone_rounds < LONE_ROUNDS or self.swarm.at - self.met_at < SETTLE_SECONDS
        return 0 if is_chance else self.own.lone_rounds

    @property
    def own_name(self) -> str:
        """The name of this peer's owner."""
        return self.swarm.own_name or speakable_name(self.own.peer_id or "")

    @property
    def join_command(self) -> str:
        """The command with which others join, in one line; empty while this peer has no address."""
        if self.given_command or not self.addresses:
            return self.given_command
        command = join_link(self.run.run_id, self.addresses).command
        return ("peer join --invite FILE" if self.run.is_private else command) + self.run.flags_to_bring

    @property
    def join_heading(self) -> str:
        """The heading above the join command; fits into 60 columns."""
        if self.run.is_private:
            return "Others need an invite from `peer invite`, and join with:"
        return "Share this; others join with it:"

    @property
    def session_tokens(self) -> int:
        return max(0, self.own.tokens - self.own.earlier_tokens)

    @property
    def usual_round_seconds(self) -> float:
        """Typical seconds between two rounds in this session; 0: unknown."""
        if self.own.joined_at is None or self.own.last_round_at is None or not self.own.rounds_committed:
            return 0.0
        return max(0.0, self.own.last_round_at - self.own.joined_at) / self.own.rounds_committed

    @property
    def phase(self) -> str:
        """This peer's activity, in words for its owner."""
        return "compiling the first step" if self.is_compiling else self.own.phase

    @property
    def marked_page(self) -> str:
        """Address of the run's page with this peer's owner highlighted; valid from the first minute."""
        return f"{self.run.page}/?you={self.swarm.own_id}" if self.run.page and self.swarm.own_id else self.run.page

    @property
    def own_page(self) -> str:
        """Address of the page about this peer's owner; empty if the run has no page."""
        return f"{self.run.page}/c/{self.swarm.own_id}" if self.run.page and self.swarm.own_id else self.run.page


def scene_of(run_id: str, limits: updates.LineLimits, *, is_seed: bool) -> Scene:
    """Return the scene before any event."""
    return Scene(is_seed=is_seed, loading=Checklist.of(is_seed=is_seed), run=updates.RunFacts(run_id), limits=limits)


def with_event(scene: Scene, event: events.Event) -> Scene:
    """Return the scene after an event."""
    before, own = scene.own, own_view_after(scene.own, event)
    scene = replace(scene, own=own, loading=scene.loading.after(event), is_seed=scene.is_seed or own.is_seed)
    if isinstance(event.fact, events.TrainingProgressed):
        scene = replace(scene, is_compiling=scene.is_compiling and not scene.session_tokens)
    news = news_of(event, before, own, scene.run)
    if before.is_unsaved and not own.is_unsaved:
        news.append(NewsLine(event.at, "good", "Checkpoints are saved again", topic="checkpoint"))
    return _with_news(scene, news)


def with_note(scene: Scene, sentence: str, at: float) -> Scene:
    """Return the scene after a note for the owner that is not an event."""
    return _with_news(scene, [note_of(at, sentence)])


def with_update(scene: Scene, update: updates.ViewUpdate, at: float = 0.0) -> Scene:
    """Return the scene after another update, which arrived at a time in unix seconds."""
    match update:
        case updates.Remark():
            return _with_news(scene, [NewsLine(at, "person", update.text)])
        case updates.LoadingStep():
            return replace(scene, loading=scene.loading.with_step(update))
        case updates.RunFacts():
            return replace(scene, run=update)
        case updates.LineLimits():
            return replace(scene, limits=update)
        case updates.Doing("paused" | "resumed"):
            return replace(scene, is_resting=update.what == "paused", resting_at=at)
        case updates.Doing("compiling"):
            return _with_news(replace(scene, is_compiling=True), [NewsLine(at, "person", update.sentence)])
        case updates.Doing("compiled"):
            return replace(scene, is_compiling=False)
        case updates.Doing("leaving"):
            return replace(scene, leaving=update.text)
        case updates.Doing():
            return replace(scene, is_ended_for_good=True)
        case OwnAddresses():
            return replace(
                scene,
                addresses=update.addresses,
                given_command=update.join_command,
                listening=update.listening,
                has_network=bool(update.addresses),
            )
        case SwarmSeen():
            return _with_swarm(scene, update)


def _with_swarm(scene: Scene, seen: SwarmSeen) -> Scene:
    names = scene.names
    if seen.names:
        kept = {} if len(names) + len(seen.names) > MAX_NAMES else dict(names)
        names = MappingProxyType(kept | dict(seen.names))
    sharing = 2 if scene.is_seed else 1
    if scene.swarm.num_other_trainers < sharing <= seen.num_other_trainers:
        scene = replace(scene, met_at=seen.at, own=replace(scene.own, lone_rounds=0))
    return replace(scene, swarm=seen, names=names)


def _with_news(scene: Scene, news: list[NewsLine]) -> Scene:
    kept = scene.news
    for line in news:
        kept = (*(old for old in kept if not is_passed(old, line)), line)
    return replace(scene, news=kept[-MAX_NEWS:])
