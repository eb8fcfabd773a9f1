"""What keys do: which page is shown, and what the owner asks for. A pure state machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from peer.panel.scene.updates import Action, LineLimits

Page = Literal["main", "details", "help", "addresses"]
_PAGES: dict[str, Page] = {"d": "details", "?": "help", "h": "help", "i": "addresses"}
LEAST_MBIT = 0.2
"""As of the flags: below it a round does not pass in time."""
MOST_MBIT = 1_000_000.0
MAX_TYPED = 20
"""More characters than any of these numbers needs; a paste may have any number."""
PASTED = "pasted:"
"""Before pasted text, which is a single key: outside of a question it does nothing."""
_UP = "Most Mbit/s to send"
_DOWN = "Most Mbit/s to receive"


@dataclass(frozen=True, slots=True)
class Question:
    """The limits are asked for, first up and then down."""

    typed: str = ""
    up_mbit: float | None = None
    is_second: bool = False
    problem: str = ""

    def text(self, room: int) -> str:
        """The question in at most `room` columns, with what is typed."""
        asked = f"{_DOWN if self.is_second else _UP}: {self.typed}_"
        explained = self.problem or "Enter: no limit; Esc: back."
        told = f"{explained} {asked}"
        return told if len(told) <= room else asked[-room:]


@dataclass(frozen=True, slots=True)
class Controls:
    """Where the person at the keys is."""

    page: Page = "main"
    part: int = 0
    """Which part of a page is shown where it does not fit; after the last one comes the first again."""
    question: Question | None = None
    can_rest: bool = True

    def press(self, key: str) -> tuple[Controls, Action | None]:
        """What a key changes, and what it asks of the peer."""
        if self.question is not None:
            return self._answer(self.question, key)
        if key in ("q", "Q"):
            return self, "leave"
        if key == "p" and self.can_rest:
            return self, "rest"
        if key in ("l", "u"):
            return replace(self, question=Question()), None
        if key in _PAGES:
            page = _PAGES[key]
            return replace(self, page="main" if self.page == page else page, part=0), None
        if key in ("escape", "enter"):
            return replace(self, page="main", part=0), None
        if key == " " and self.page != "main":
            return replace(self, part=self.part + 1), None
        return self, None

    def _answer(self, question: Question, key: str) -> tuple[Controls, Action | None]:
        if key == "escape":
            return replace(self, question=None), None
        if key == "backspace":
            return replace(self, question=replace(question, typed=question.typed[:-1])), None
        if key != "enter":
            # Whatever it is, it is seen: Enter says whether it is a number.
            typed = (question.typed + key.removeprefix(PASTED).strip("\r\n"))[:MAX_TYPED]
            return replace(self, question=replace(question, typed=typed, problem="")), None
        typed = question.typed.strip()
        mbit = None
        if typed:
            mbit = float(typed) if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", typed) else -1.0
        if mbit is not None and not LEAST_MBIT <= mbit <= MOST_MBIT:
            problem = f"{question.typed}: expected {LEAST_MBIT:g} to {MOST_MBIT:g}, such as 10."
            return replace(self, question=replace(question, typed="", problem=problem)), None
        if question.is_second:
            return replace(self, question=None), LineLimits(question.up_mbit, mbit)
        return replace(self, question=Question(up_mbit=mbit, is_second=True)), None


def hints(controls: Controls, *, has_keys: bool, is_resting: bool, room: int = 80) -> str:
    """The last line: what can be pressed, of that what fits into `room` columns; help has the rest."""
    if not has_keys:
        return "Ctrl+C leaves the run"
    if controls.page != "main":
        return "Esc back  q leave"
    rest = [f"p {'go on' if is_resting else 'pause'}"] if controls.can_rest else []
    told = ["q leave", *rest, "l limits", "d details", "i addresses"]
    while len("  ".join([*told, "? help"])) > room and len(told) > 1:
        told.pop()
    return "  ".join([*told, "? help"])
