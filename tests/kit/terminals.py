"""Terminals that are lost or stuck."""

from __future__ import annotations

import threading

from dht.ground.host import PeerId
from peer.events.peer_events import Event, SwarmContact
from peer.panel.event_view import EventView


class StuckView(EventView):
    """Takes its first item and then nothing until it is freed, like a terminal that was paused."""

    def __init__(self) -> None:
        self.stuck = threading.Event()
        self.freed = threading.Event()
        self.closed = threading.Event()
        self.shown: list[Event | str] = []

    def show(self, event: Event) -> None:
        self.stuck.set()
        assert self.freed.wait(30)
        self.shown.append(event)

    def note(self, sentence: str) -> None:
        self.shown.append(sentence)

    def close(self) -> None:
        self.closed.set()


def lost(at: float) -> Event:
    return Event(at, PeerId("me"), SwarmContact("lost", 0.0))
