"""The effects of keys: the page that is shown, and the owner's requests. A pure state machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from peer.panel.updates import Action, LineLimits

Page = Literal["main", "help", "addresses"]
_PAGES: dict[str, Page] = {"?": "help", "h": "help", "i": "addresses"}
LEAST_MBIT = 0.2
"""The minimum of the flags; with less, a round does not finish in time."""
MOST_MBIT = 1_000_000.0
MAX_TYPED = 20
"""More characters than any valid number needs; a paste may have any length."""
PASTED = "pasted:"
"""Prefix of pasted text, which counts as a single key and has no effect outside a question."""
NO_LIMITS = LineLimits()
_UP = "Max Mbit/s to send"
_DOWN = "Max Mbit/s to receive"


@dataclass(frozen=True, slots=True)
class Question:
    """The questions about limits, first up and then down; unanswered values stay unchanged."""

    limits: LineLimits
    """The current limits; during the second question `up_mbit` is the first answer."""
    typed: str = ""
    is_second: bool = False
    problem: str = ""

    @property
    def present(self) -> float | None:
        """The current value of the requested limit."""
        return self.limits.down_mbit if self.is_second else self.limits.up_mbit

    def text(self, room: int) -> str:
        """Return the question and the typed text in at most `room` columns."""
        now = "" if self.present is None else f" (now {mbit_text(self.present)})"
        asked = f"{_DOWN if self.is_second else _UP}{now}: {self.typed}_"
        explained = self.problem or f"Enter{' keeps it, none removes it' if now else ': no limit'}; Esc: back."
        told = f"{explained} {asked}"
        return told if len(told) <= room else asked[-room:]


@dataclass(frozen=True, slots=True)
class Controls:
    """The state of the key controls."""

    page: Page = "main"
    question: Question | None = None
    can_rest: bool = True

    def press(self, key: str, limits: LineLimits = NO_LIMITS) -> tuple[Controls, Action | None]:
        """Return the state after a key, and its request to the peer, whose connection has these limits."""
        if self.question is not None:
            return self._answer(self.question, key)
        if key in ("q", "Q"):
            return self, "leave"
        if key == "p" and self.can_rest:
            return self, "rest"
        if key == "l":
            return replace(self, question=Question(limits)), None
        if key in _PAGES:
            page = _PAGES[key]
            return replace(self, page="main" if self.page == page else page), None
        if key in ("escape", "enter"):
            return replace(self, page="main"), None
        return self, None

    def _answer(self, question: Question, key: str) -> tuple[Controls, Action | None]:
        if key == "escape":
            return replace(self, question=None), None
        if key == "backspace":
            return replace(self, question=replace(question, typed=question.typed[:-1])), None
        if key != "enter":
            # All input is shown; Enter checks whether it is a number.
            typed = (question.typed + key.removeprefix(PASTED).strip("\r\n"))[:MAX_TYPED]
            return replace(self, question=replace(question, typed=typed, problem="")), None
        mbit = _mbit_of(question.typed.strip().lower(), question.present)
        if mbit is not None and not LEAST_MBIT <= mbit <= MOST_MBIT:
            expected = f"{mbit_text(LEAST_MBIT)} to {mbit_text(MOST_MBIT)}, such as 10, or none."
            problem = f"{question.typed}: expected {expected}"
            return replace(self, question=replace(question, typed="", problem=problem)), None
        if question.is_second:
            return replace(self, question=None), replace(question.limits, down_mbit=mbit)
        return replace(self, question=Question(replace(question.limits, up_mbit=mbit), is_second=True)), None


def mbit_text(mbit: float) -> str:
    """Return a limit as it is typed, without an exponent."""
    return f"{mbit:.7g}"


def _mbit_of(typed: str, present: float | None) -> float | None:
    """Parse the typed text: empty keeps the present value, 0 and `none` remove it, -1 means not a number.

    A comma is a decimal comma, except before three digits, where it is ambiguous.
    """
    if not typed:
        return present
    if typed in ("0", "none"):
        return None
    number = re.sub(r"^([0-9]*),([0-9]{1,2})$", r"\1.\2", typed)
    return float(number) if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", number) else -1.0


def hints(controls: Controls, *, has_keys: bool, is_resting: bool, room: int = 80) -> str:
    """Return the last line: the keys that fit into `room` columns; the help page lists the rest."""
    if not has_keys:
        return "Ctrl+C leaves the run"
    if controls.page != "main":
        return "Esc back  q leave"
    rest = [f"p {'resume' if is_resting else 'pause'}"] if controls.can_rest else []
    told = ["q leave", *rest, "l limits", "i addresses"]
    while len("  ".join([*told, "? help"])) > room and len(told) > 1:
        told.pop()
    return "  ".join([*told, "? help"])
