"""`EventView`: the interface of a view for the terminal of a peer."""

from __future__ import annotations

from peer.events.peer_events import Event
from peer.panel.updates import Doing, Remark, ViewUpdate
from peer.view.swarm_seen import OwnAddresses


class EventView:
    """A view of one peer that shows nothing. No method of a view raises, whatever the state of the output."""

    is_full_screen = False
    """Whether the view draws the whole terminal, so that other output would disturb it."""

    def show(self, event: Event) -> None:
        """Process an event."""

    def tell(self, update: ViewUpdate) -> None:
        """Process another update; as lines, only its sentences for the owner."""
        if isinstance(update, OwnAddresses):
            for sentence in update.sentences():
                self.note(sentence)
        elif isinstance(update, Remark):
            self.note(update.text)
        elif isinstance(update, Doing) and update.sentence:
            self.note(update.sentence)

    def tick(self, now: float) -> None:
        """Advance the time (unix seconds); called several times a second."""

    def note(self, sentence: str) -> None:
        """Show the owner a sentence that is not an event, e.g. a warning of the event log."""

    def suspend_soon(self) -> None:
        """Handle Ctrl+Z; called from a signal handler."""

    def restore(self) -> None:
        """Restore the terminal's settings, even if the output is stuck; may be called from any thread."""

    def close(self) -> None:
        """Leave the terminal as it was found."""
