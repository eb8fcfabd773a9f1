"""Events of one peer, and what they fold into; a terminal that is a string."""

from __future__ import annotations

import io

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.host import PeerId
from peer.events.peer_events import Event, JoinedRun, TrainingProgressed
from peer.view.own_view import OwnView, own_view_after

ME = PeerId("12D3KooWabcdefgh")
OTHER = PeerId("12D3KooWzyxwvuts")


def joined(at: float = 0.0, device: str = "cpu") -> Event:
    return Event(at, ME, JoinedRun(run_id="demo.abc", device=device, num_parameters=860_000, versions=(0, 0, 0)))


def progressed(at: float, loss: float | None = 2.0) -> Event:
    fact = TrainingProgressed(int(at), int(at) * 1000, train_loss=loss, tokens_per_second=1000.0, wait_fraction=0.001)
    return Event(at, ME, fact)


def committed(at: float, contributors: tuple[PeerId, ...] = (ME, OTHER)) -> Event:
    fact = RoundCommitted(
        fragment=1,
        version=4,
        contributors=contributors,
        outer_lr=0.7,
        tokens=24_000,
        num_void_shards=0,
        seconds=1.0,
        bytes_up=75_000,
        bytes_down=150_000,
        contribution_values_sent=1,
        result_values_received=1,
    )
    return Event(at, ME, fact)


def folded(*events: Event) -> OwnView:
    state = OwnView()
    for event in events:
        state = own_view_after(state, event)
    return state


class StringTerminal(io.StringIO):
    """Takes what is drawn."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
