"""`OwnView`: the figures of one peer, computed from its own events. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from averaging.rounds.round_facts import AppliedCommit, RoundCommitted
from dht.ground.host import PeerId
from dht.identity.multiaddr import parse_multiaddr
from dht.records.evaluation import Evaluation
from peer.events import peer_events as events
from peer.events.anchor_events import AnchorRepair, Fetched
from peer.events.lone_rounds import is_shared, lone_rounds_after
from peer.events.path_events import ReachabilityFound, RelayChanged
from peer.view.run_clock import SPEED_SECONDS
from peer.view.run_view import RunView

NUM_LOSSES = 240
"""Maximum number of points of the loss curve; a full curve drops every second point, and so spans the session."""

MAX_LEFT_OUT = 64
MAX_SERVED = 10_000
"""Maximum number of distinguished newcomers, because a flood of keys must not fill the memory."""
PACE_STEP_SECONDS = 20.0
"""Time between two stored readings of the run's clock."""
RATE_WINDOW_SECONDS = 60.0
"""Network rates are averages over this time: several rounds, yet short enough to show a stall."""


@dataclass(frozen=True, slots=True)
class RoundBytes:
    """The bytes that one committed round, or one newcomer, moved through this peer's connection."""

    at: float
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class OwnView:
    """A peer's facts about itself: its work, rounds, speed and connection.

        Times are unix seconds. Bytes count this session; work counts all sessions, and the `earlier_*` fields count the
    sessions before this one.
    """

    run_id: str = ""
    peer_id: PeerId | None = None
    phase: str = "starting"
    device: str = ""
    num_parameters: int = 0
    started_at: float | None = None
    last_event_at: float | None = None
    last_round_at: float | None = None
    """Time of the last closed round known to this peer."""
    inner_steps: int = 0
    tokens: int = 0
    run_tokens: int = 0
    budget_tokens: int | None = None
    learning_rate: float | None = None
    tokens_per_second: float = 0.0
    wait_fraction: float = 0.0
    train_loss: float | None = None
    evaluation: Evaluation | None = None
    losses: tuple[float, ...] = ()
    loss_stride: int = 1
    num_losses_seen: int = 0
    versions: tuple[int, ...] = ()
    others: frozenset[PeerId] = frozenset()
    rounds_committed: int = 0
    rounds_contributed: int = 0
    lone_rounds: int = 0
    """Number of the newest consecutive rounds with one member, as `lone_rounds_after` counts them."""
    earlier_inner_steps: int = 0
    earlier_tokens: int = 0
    earlier_rounds: int = 0
    served_bytes: int = 0
    """Bytes of the run's state sent to members that joined or caught up."""
    served: frozenset[PeerId] = frozenset()
    """Peers that received some of these bytes, including pages and exports; at most `MAX_SERVED`."""
    met: frozenset[PeerId] = frozenset()
    """Members that were in view at any time; at most `MAX_SERVED`."""
    traffic: tuple[RoundBytes, ...] = ()
    left_out: tuple[tuple[PeerId, float], ...] = ()
    """Peers excluded from rounds, each with the end of its exclusion (unix seconds), newest first."""
    joined_at: float | None = None
    alone_at: float = 0.0
    """Time at which the other members last became unresponsive."""
    confirmed_rounds: int = 0
    """Rounds with work of this peer and of another peer that signed them."""
    losses_at: tuple[float, float] | None = None
    """Times at which the first and the last of `losses` were measured."""
    first_evaluation: Evaluation | None = None
    best_evaluation: Evaluation | None = None
    pace: tuple[tuple[float, int], ...] = ()
    """(time, tokens committed by the swarm) readings."""
    has_caught_up: bool = False
    """Whether the run's state was fetched from members."""
    has_ended: bool = False
    """Whether the owner has ended the run."""
    is_unsaved: bool = False
    """Whether the last attempt at a checkpoint failed."""
    is_reachable: bool | None = None
    """The result of the last member's attempt to dial; None: no member has tried."""
    is_private_path: bool = False
    """Whether that member used a private address, which proves nothing about the internet."""
    reachable_at: float | None = None
    relays: tuple[PeerId, ...] = ()
    """Relays through which others reach this peer."""
    relaying: str = ""
    """Whether this peer relays for others: full, limited or none; empty: not tested yet."""

    @property
    def num_newcomers(self) -> int:
        """Number of members among the served peers; a page that generates samples is not a member."""
        return len(self.served & self.met)

    @property
    def num_peers(self) -> int:
        """Number of members in view, including this peer."""
        return len(self.others) + 1

    @property
    def is_seed(self) -> bool:
        """Whether this peer only serves the run and does not train."""
        return self.device == "seed"

    @property
    def num_readers(self) -> int:
        """Number of served peers that did not become members."""
        return len(self.served) - self.num_newcomers

    def bits_per_second(self, now: float) -> tuple[float, float]:
        """Return (up, down) averaged over the last `RATE_WINDOW_SECONDS` before `now`."""
        window = [moved for moved in self.traffic if moved.at > now - RATE_WINDOW_SECONDS]
        up = sum(moved.bytes_up for moved in window)
        down = sum(moved.bytes_down for moved in window)
        return 8 * up / RATE_WINDOW_SECONDS, 8 * down / RATE_WINDOW_SECONDS


def known_run(own: OwnView, run: RunView) -> RunView:
    """Return the figures of the run, with this peer's own until the first observation of its members."""
    evaluation, tokens = run.evaluation or own.evaluation, run.committed_tokens or own.run_tokens
    return replace(run, evaluation=evaluation, committed_tokens=tokens)


def own_view_after(state: OwnView, event: events.Event) -> OwnView:
    """Return the state after `event`. Events are of one peer, in the order in which they happened."""
    return replace(
        _with_facts(state, event),
        # The supervisor reports a restart before it knows the PeerId.
        peer_id=event.peer_id or state.peer_id,
        last_event_at=event.at,
        started_at=event.at if state.started_at is None else state.started_at,
    )


def _with_facts(state: OwnView, event: events.Event) -> OwnView:
    match fact := event.fact:
        case events.JoinedRun():
            is_first = not state.run_id
            return replace(
                state,
                phase="serving" if fact.device == "seed" else "training",
                lone_rounds=0,
                left_out=(),
                earlier_inner_steps=fact.earlier_inner_steps if is_first else state.earlier_inner_steps,
                earlier_tokens=fact.earlier_tokens if is_first else state.earlier_tokens,
                earlier_rounds=fact.earlier_rounds if is_first else state.earlier_rounds,
                inner_steps=max(state.inner_steps, fact.earlier_inner_steps),
                tokens=max(state.tokens, fact.earlier_tokens),
                rounds_contributed=max(state.rounds_contributed, fact.earlier_rounds),
                run_id=fact.run_id,
                device=fact.device,
                num_parameters=fact.num_parameters,
                versions=fact.versions,
                budget_tokens=fact.budget_tokens,
                joined_at=state.joined_at or event.at,
            )
        case events.SwarmContact(state="waiting"):
            return replace(state, phase="waiting for peers")
        case Fetched(is_done=False):
            return replace(state, phase="catching up")
        case Fetched():
            phase = "starting" if state.phase == "catching up" else state.phase
            return replace(state, phase=phase, has_caught_up=state.has_caught_up or bool(fact.fragments))
        case events.MemberChanged(has_joined=True):
            phase = {"training alone": "training", "alone": "serving"}.get(state.phase, state.phase)
            met = state.met | {fact.remote} if len(state.met) < MAX_SERVED else state.met
            return replace(state, phase=phase, others=(state.others | {fact.remote}) - {event.peer_id}, met=met)
        case events.MemberChanged() if fact.reason:
            return replace(state, others=state.others - {fact.remote})
        case events.SwarmContact(state="lost"):
            phase = "alone" if state.is_seed else "training alone"
            return replace(state, phase=phase, others=frozenset(), alone_at=event.at - fact.seconds)
        case events.SwarmContact(state="found"):
            return replace(state, phase="serving" if state.is_seed else "training")
        case events.StateServed():
            return replace(
                state,
                served_bytes=state.served_bytes + fact.num_bytes,
                served=state.served | {fact.remote} if len(state.served) < MAX_SERVED else state.served,
                traffic=(*_recent(state.traffic, event.at), RoundBytes(event.at, fact.num_bytes, 0)),
            )
        case events.TrainingProgressed():
            return _with_loss(
                replace(
                    state,
                    phase="training" if state.phase in ("starting", "waiting for peers") else state.phase,
                    inner_steps=fact.inner_steps,
                    tokens=fact.tokens,
                    tokens_per_second=fact.tokens_per_second,
                    wait_fraction=fact.wait_fraction,
                    run_tokens=fact.run_tokens,
                    learning_rate=fact.learning_rate,
                    pace=_with_pace(state.pace, event.at, fact.run_tokens),
                ),
                fact.train_loss,
                event.at,
            )
        case RoundCommitted():
            return _with_round(state, event, fact)
        case AppliedCommit() | AnchorRepair(is_done=True):
            last_round_at = event.at if isinstance(fact, AppliedCommit) else state.last_round_at
            versions = _with_version(state.versions, fact.fragment, fact.version)
            return replace(state, versions=versions, last_round_at=last_round_at)
        case events.CheckpointSaved():
            return replace(state, versions=fact.versions, is_unsaved=False)
        case events.CheckpointFailed(kept_at=""):
            return replace(state, is_unsaved=True)
        case events.Evaluated():
            return _with_evaluation(state, fact)
        case ReachabilityFound():
            ips = [parse_multiaddr(address).ip for address in fact.addresses]
            is_private_path = bool(ips) and all(ip is not None and ip.is_private for ip in ips)
            return replace(state, is_reachable=fact.reachable, reachable_at=event.at, is_private_path=is_private_path)
        case RelayChanged() if fact.own_relay:
            return replace(state, relaying=fact.own_relay)
        case RelayChanged():
            return replace(state, relays=fact.relays)
        case events.RefusedPeer() if fact.left_out_until is not None:
            others = tuple(one for one in state.left_out if one[0] != fact.remote)
            return replace(state, left_out=((fact.remote, fact.left_out_until), *others)[:MAX_LEFT_OUT])
        case events.PartRestarted(part="network"):
            return replace(state, left_out=())  # the new process has no exclusions
        case events.RunChanged(has_ended=True):
            return replace(state, has_ended=True)
        case events.LeftRun():
            return replace(state, phase="left", inner_steps=fact.inner_steps, tokens=fact.tokens)
    return state


def _with_round(state: OwnView, event: events.Event, fact: RoundCommitted) -> OwnView:
    moved = RoundBytes(event.at, fact.bytes_up, fact.bytes_down)
    is_own, is_confirmed = event.peer_id in fact.contributors, is_shared(fact)
    return replace(
        state,
        confirmed_rounds=state.confirmed_rounds + (is_own and is_confirmed),
        lone_rounds=lone_rounds_after(state.lone_rounds, event, is_seed=state.is_seed),
        last_round_at=event.at,
        rounds_committed=state.rounds_committed + 1,
        rounds_contributed=state.rounds_contributed + is_own,
        traffic=(*_recent(state.traffic, event.at), moved),
    )


def _recent(traffic: tuple[RoundBytes, ...], now: float) -> tuple[RoundBytes, ...]:
    return tuple(one for one in traffic if one.at > now - RATE_WINDOW_SECONDS)


def _with_loss(state: OwnView, loss: float | None, at: float) -> OwnView:
    if loss is None:
        return replace(state, train_loss=None)
    losses, stride = state.losses, state.loss_stride
    if state.num_losses_seen % stride == 0:
        losses = (*losses, loss)
    if len(losses) > NUM_LOSSES:
        losses, stride = losses[::2], stride * 2
    return replace(
        state,
        train_loss=loss,
        losses=losses,
        losses_at=(at if state.losses_at is None else state.losses_at[0], at),
        loss_stride=stride,
        num_losses_seen=state.num_losses_seen + 1,
    )


def _with_evaluation(state: OwnView, fact: events.Evaluated) -> OwnView:
    newest, best = fact.evaluation, state.best_evaluation
    if newest is not None and (best is None or newest.loss < best.loss):
        best = newest
    first = newest if state.first_evaluation is None else state.first_evaluation
    return replace(state, evaluation=newest, first_evaluation=first, best_evaluation=best)


def _with_pace(pace: tuple[tuple[float, int], ...], at: float, run_tokens: int) -> tuple[tuple[float, int], ...]:
    if run_tokens and (not pace or at - pace[-1][0] >= PACE_STEP_SECONDS):
        return (*(reading for reading in pace if reading[0] > at - SPEED_SECONDS), (at, run_tokens))
    return pace


def _with_version(versions: tuple[int, ...], fragment: int, version: int) -> tuple[int, ...]:
    if not 0 <= fragment < len(versions):
        return versions
    return (*versions[:fragment], version, *versions[fragment + 1 :])
