"""Scene: everything that a picture is drawn from. A pure fold of events, notes and what else a view is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dht.ground.host import PeerId
from dht.ground.quantities import plural, short_peer
from dht.identity.join_link import join_link
from dht.identity.speakable import speakable_name
from dht.records.evaluation import Evaluation
from peer.events import peer_events as events
from peer.events.lone_rounds import LONE_ROUNDS
from peer.panel import updates
from peer.panel.checklist import Checklist
from peer.panel.news import NewsLine, is_passed, news_of, note_of
from peer.view.own_view import OwnView, own_view_after
from peer.view.swarm_seen import OwnAddresses, SwarmSeen

MAX_NEWS = 60
"""More than the tallest terminal shows."""
MAX_NAMES = 5000
SETTLE_SECONDS = 20.0
"""After others came: until then they are on their way into a first round."""
NOTHING: Mapping[PeerId, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Scene:
    """Times are unix seconds."""

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
    """When the owner paused training last."""
    has_network: bool = True
    """False: this machine has no address now."""
    is_compiling: bool = False
    """The first step of this session: it is not done yet."""
    leaving: str = ""
    """What is still done before this peer has left; empty: nobody asked it to leave."""
    addresses: tuple[str, ...] = ()
    given_command: str = ""
    """What others type to join here, as far as it was said."""
    listening: tuple[str, ...] = ()
    """Where a seed listens, with the ports that it got: links lead there."""
    same_again: Callable[[updates.LineLimits, Sequence[str]], str] = lambda limits, listening: ""
    """The command that brings this peer back as it is, with these limits, there; empty: a plain one does."""
    met_at: float = -math.inf
    """When this peer saw others train with whom rounds can be shared, after a time without any."""
    began_at: float = 0.0
    """When this process began; a seed is up from then on, also before the first trainer came. 0: not known."""
    is_ended_for_good: bool = False
    """For a reason that the next start would meet again."""

    def name_of(self, peer_id: PeerId) -> str:
        """What people call the owner of a key."""
        return self.names.get(peer_id) or speakable_name(peer_id)

    def sentence_of(self, event: events.Event) -> str:
        """What an event says, with names in place of the ends of keys."""
        told = event.sentence()
        for peer_id in event.named:
            told = told.replace(short_peer(peer_id), self.name_of(peer_id))
        return told

    @property
    def num_others(self) -> int:
        """Machines of the run beside this one, seeds among them: what every screen and line calls others."""
        if self.own.phase in ("training alone", "alone"):
            return 0
        return self.swarm.num_others if self.swarm.at else len(self.own.others)

    @property
    def num_training(self) -> int:
        """Machines that train, this one included; of a seed without others none does, whatever old records say."""
        return self.swarm.run.num_training if self.num_others or not self.is_seed else 0

    @property
    def evaluation(self) -> Evaluation | None:
        """Of the run as its members measured it; of this peer alone before any other did."""
        return self.swarm.run.evaluation or self.own.evaluation

    @property
    def committed_tokens(self) -> int:
        """The run's clock as its members have it; as this peer alone knows it before it has looked at them."""
        return self.swarm.run.committed_tokens or self.own.run_tokens

    @property
    def is_left_alone(self) -> bool:
        """Whether nobody is here now although others were."""
        return not self.num_others and bool(self.own.met or self.swarm.num_silent)

    @property
    def others_here(self) -> str:
        """In words, with those that are known and do not answer."""
        silent = f", {self.swarm.num_silent} not answering" if self.swarm.num_silent else ""
        return f"{plural(self.num_others, 'other')} here{silent}"

    @property
    def lone_rounds(self) -> int:
        """The newest rounds in a row that had one member, once they are too many for chance.

        Rounds before anybody else was there do not count, nor do the first moments with others.
        """
        is_chance = self.own.lone_rounds < LONE_ROUNDS or self.swarm.at - self.met_at < SETTLE_SECONDS
        return 0 if is_chance else self.own.lone_rounds

    @property
    def own_name(self) -> str:
        """What people call this peer's owner."""
        return self.swarm.own_name or speakable_name(self.own.peer_id or "")

    @property
    def join_command(self) -> str:
        """What others type to join here, in one line; empty while this peer has no address."""
        if self.given_command or not self.addresses:
            return self.given_command
        command = join_link(self.run.run_id, self.addresses).command
        return ("peer join --invite FILE" if self.run.is_private else command) + self.run.flags_to_bring

    @property
    def join_heading(self) -> str:
        """What stands above the join command; in 60 columns."""
        if self.run.is_private:
            return "Others need an invite (`peer invite` writes it). They type:"
        return "Share this; others join with it:"

    @property
    def session_tokens(self) -> int:
        return max(0, self.own.tokens - self.own.earlier_tokens)

    @property
    def usual_round_seconds(self) -> float:
        """From one round to the next, in this session; 0: not known."""
        if self.own.joined_at is None or self.own.last_round_at is None or not self.own.rounds_committed:
            return 0.0
        return max(0.0, self.own.last_round_at - self.own.joined_at) / self.own.rounds_committed

    @property
    def phase(self) -> str:
        """What this peer does, in words for its owner."""
        return "compiling the first step" if self.is_compiling else self.own.phase

    @property
    def marked_page(self) -> str:
        """Address of the run's page with this peer's owner marked in it: there from the first minute on."""
        return f"{self.run.page}/?you={self.swarm.own_id}" if self.run.page and self.swarm.own_id else self.run.page

    @property
    def own_page(self) -> str:
        """Address of the page about this peer's owner; empty when the run has no page."""
        return f"{self.run.page}/c/{self.swarm.own_id}" if self.run.page and self.swarm.own_id else self.run.page


def scene_of(run_id: str, limits: updates.LineLimits, *, is_seed: bool) -> Scene:
    """Before anything has happened."""
    return Scene(is_seed=is_seed, loading=Checklist.of(is_seed=is_seed), run=updates.RunFacts(run_id), limits=limits)


def with_event(scene: Scene, event: events.Event) -> Scene:
    """The scene after an event."""
    before, own = scene.own, own_view_after(scene.own, event)
    scene = replace(scene, own=own, loading=scene.loading.after(event), is_seed=scene.is_seed or own.is_seed)
    if isinstance(event.fact, events.TrainingProgressed):
        scene = replace(scene, is_compiling=scene.is_compiling and not scene.session_tokens)
    news = news_of(event, before, own, scene.run)
    if before.is_unsaved and not own.is_unsaved:
        news.append(NewsLine(event.at, "good", "Checkpoints are saved again", topic="checkpoint"))
    return _with_news(scene, news)


def with_note(scene: Scene, sentence: str, at: float) -> Scene:
    """The scene after a sentence for the owner that is no event."""
    return _with_news(scene, [note_of(at, sentence)])


def with_update(scene: Scene, update: updates.ViewUpdate, at: float = 0.0) -> Scene:
    """The scene after something else, which came at a time in unix seconds."""
    match update:
        case updates.Remark():
            return _with_news(scene, [NewsLine(at, "person", update.text)])
        case updates.LoadingStep():
            return replace(scene, loading=scene.loading.with_step(update))
        case updates.RunFacts():
            return replace(scene, run=update)
        case updates.LineLimits():
            return replace(scene, limits=update)
        case updates.Resting():
            return replace(scene, is_resting=update.is_resting, resting_at=at)
        case updates.Compiling():
            news = [NewsLine(at, "person", update.text)] if update.is_compiling else []
            return _with_news(replace(scene, is_compiling=update.is_compiling), news)
        case updates.Leaving():
            return replace(scene, leaving=update.text)
        case updates.EndedForGood():
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
