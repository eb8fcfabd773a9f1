"""What keys do: which page is shown, and what the owner asks for. A pure state machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from peer.panel.updates import Action

Page = Literal["main", "help", "addresses"]
_PAGES: dict[str, Page] = {"?": "help", "h": "help", "i": "addresses"}


@dataclass(frozen=True, slots=True)
class Controls:
    """Where the person at the keys is."""

    page: Page = "main"
    can_rest: bool = True

    def press(self, key: str) -> tuple[Controls, Action | None]:
        """What a key changes, and what it asks of the peer."""
        if key in ("q", "Q"):
            return self, "leave"
        if key == "p" and self.can_rest:
            return self, "rest"
        if key in _PAGES:
            page = _PAGES[key]
            return replace(self, page="main" if self.page == page else page), None
        if key in ("escape", "enter"):
            return replace(self, page="main"), None
        return self, None


def hints(controls: Controls, *, has_keys: bool, is_resting: bool, room: int = 80) -> str:
    """The last line: what can be pressed, of that what fits into `room` columns; help has the rest."""
    if not has_keys:
        return "Ctrl+C leaves the run"
    if controls.page != "main":
        return "Esc back  q leave"
    rest = [f"p {'go on' if is_resting else 'pause'}"] if controls.can_rest else []
    told = ["q leave", *rest, "i addresses"]
    while len("  ".join([*told, "? help"])) > room and len(told) > 1:
        told.pop()
    return "  ".join([*told, "? help"])
