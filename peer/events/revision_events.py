"""What the run's owner changes while it goes on, as events. Import them from `peer.events.log`."""

from __future__ import annotations

from dataclasses import dataclass

from peer.events.peer_events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRevised(Event):
    """The run's owner published another revision of the manifest."""

    revision: int
    changes: str

    def sentence(self) -> str:
        changes = self.changes.strip().rstrip(".") or "nothing else differs"
        return f"Took revision {self.revision} of the manifest: {changes}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run's owner ended the run at `version`, and this peer has reached it."""

    version: int

    def sentence(self) -> str:
        return f"The run's owner ended the run at version {self.version}; this peer saves and stops."
