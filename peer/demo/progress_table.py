"""What the person sees of a demo: one table that changes in place on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dht.ground.quantities import count_text, loss_text, plural, short_peer
from dht.records.evaluation import Evaluation
from peer.console.plain_console import PlainConsole
from peer.demo.summary import DemoRow

REDRAWN_PER_SECOND = 4
"""A second hand that never stands still, for a few percent of one core."""
LINE_SECONDS = 10.0
"""Between two lines of figures in a pipe."""
STILL_SECONDS = 5.0
"""After so long without a line, one says what goes on still."""
BAR_WIDTH = 30
NARROW = 72
"""Columns below which a peer has its name alone, so that no figure is cut."""
LINES_BESIDE = 12
"""Of a picture, beside peers and explanation: the stage may take two."""
EXPLAINED = (
    ("steps", "how often the peer has changed its own copy of the model"),
    ("tokens", "pieces of text that it has read for that; {token}"),
    ("rounds", "how often its work went into an average with the work of others"),
    ("loss", "how badly it guesses the next piece, in nats: blind guessing gives {chance:.1f}"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What the table shows at one moment.

    Attributes:
        seconds: of the training so far, and of all of it; None: it has not begun.
        evaluation: of the shared model; None: not measured yet.
        rounds_since_kill: closed since a peer was killed; None: none was.
    """

    rows: tuple[DemoRow, ...] = ()
    seconds: tuple[float, float] | None = None
    evaluation: Evaluation | None = None
    num_rounds: int = 0
    rounds_since_kill: int | None = None
    page: str | None = None


@dataclass
class LineView:
    """Lines for a pipe or a log: each stage at once, and something every few seconds while it lasts."""

    console: PlainConsole
    now: Callable[[], float] = time.monotonic
    _stage_at: float = 0.0
    _said_at: float = 0.0
    _page: str | None = None

    def say(self, sentence: str) -> None:
        self._said_at = self.now()
        self.console.print(sentence)

    def stage(self, sentence: str) -> None:
        self._stage_at = self.now()
        self.say(f"{sentence} ...")

    def look(self, figures: Figures) -> None:
        if figures.page is not None and figures.page != self._page:
            self._page = figures.page
            self.say(f"The page of this swarm: {figures.page}")
        now = self.now()
        if figures.seconds is None:
            if now - self._said_at >= STILL_SECONDS:
                self.say(f"  {now - self._stage_at:.0f} s so far")
        elif now - self._said_at >= LINE_SECONDS:
            self.say(progress_line(figures))

    def close(self) -> None:
        pass


@dataclass
class TableView:
    """One table that changes in place; what is said stays above it.

    Args:
        explained: of each column, a name and a sentence.
    """

    console: PlainConsole
    explained: Sequence[tuple[str, str]]
    now: Callable[[], float] = time.monotonic
    _stage: str = "Starting"
    _stage_at: float | None = None
    _figures: Figures = Figures()
    _live: Live | None = None

    def __post_init__(self) -> None:
        self._live = Live(
            console=self.console,
            get_renderable=self._picture,
            refresh_per_second=REDRAWN_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        self._live.start(refresh=True)

    def say(self, sentence: str) -> None:
        self.console.print(sentence)

    def stage(self, sentence: str) -> None:
        self._stage, self._stage_at = sentence, self.now()

    def look(self, figures: Figures) -> None:
        self._figures = figures

    def close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _picture(self) -> RenderableType:
        stage = self._stage if self._stage_at is None else f"{self._stage} ({self.now() - self._stage_at:.0f} s)"
        return picture(self._figures, stage, self.explained, self.console.width, self.console.height)


DemoView = LineView | TableView
"""Shows one demo: `say` is something that stays, `stage` what goes on from now on, `look` the newest figures; nothing
comes after `close`, which may be called twice."""


def explanations(chance: float, token: str) -> tuple[tuple[str, str], ...]:
    """What each column means, for a model whose blind guesses have the loss `chance`, and for its kind of token."""
    return tuple((name, text.format(chance=chance, token=token)) for name, text in EXPLAINED)


def progress_line(figures: Figures) -> str:
    """The figures in one line."""
    passed, length = figures.seconds or (0.0, 0.0)
    loss = "not measured yet"
    if figures.evaluation is not None:
        loss = f"{loss_text(figures.evaluation.loss)} after round {figures.evaluation.version}"
    steps = " ".join(f"{row.name} {row.steps} ({row.doing})" for row in figures.rows)
    return f"  {_clock(passed, length)}  steps: {steps}  rounds: {figures.num_rounds}  loss of the model: {loss}"


def picture(
    figures: Figures, stage: str, explained: Sequence[tuple[str, str]], width: int = 80, height: int = 24
) -> RenderableType:
    """The table, what goes on, and what each figure means, for a terminal of `width` columns and `height` lines.

    Where these are few, first the explanation is left out, and then the first peers: the last ones are killed or late.
    """
    room = max(2, height - LINES_BESIDE)
    rows = figures.rows if len(figures.rows) <= room else figures.rows[1 - room :]
    is_explained = len(rows) + 1 + len(explained) <= room
    parts: list[RenderableType] = [Text()]
    if figures.seconds is not None:
        passed, length = figures.seconds
        parts.append(Text(f"{_bar(passed / length)}  {_clock(passed, length)}", style="bold"))
    parts.append(Text(stage))
    if figures.rows:
        parts += [Text(), _table(rows, is_narrow=width < NARROW)]
        num_hidden = len(figures.rows) - len(rows)
        parts.append(Text(f"and {plural(num_hidden, 'more peer')} above them" if num_hidden else ""))
    if figures.evaluation is not None:
        rounds, evaluation = plural(figures.num_rounds, "round"), figures.evaluation
        told = f"validation loss {loss_text(evaluation.loss)} nats after round {evaluation.version}"
        parts.append(Text(f"The model they share: {rounds}; {told}", style="bold"))
    if figures.rounds_since_kill is not None:
        parts.append(Text(f"Since the kill the others have closed {plural(figures.rounds_since_kill, 'round')}."))
    if figures.rows and is_explained:
        parts.append(Text())
        parts.append(explanation(explained))
    parts.append(Text())
    if figures.page is not None:
        parts.append(Text(f"Page: {figures.page}"))
    parts.append(Text("Ctrl+C ends the demo and leaves nothing behind."))
    return Group(*parts)


def explanation(explained: Sequence[tuple[str, str]]) -> Table:
    """What each figure means; a sentence of two lines stays in its column."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(style="dim")
    for name, text in explained:
        table.add_row(name, text)
    return table


def _table(rows: Sequence[DemoRow], *, is_narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("peer", "doing", "steps", "tokens", "rounds", "loss"):
        table.add_column(title, justify="left" if title in ("peer", "doing") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name if is_narrow else f"{row.name} {short_peer(row.peer_id)}",
            row.doing,
            str(row.steps),
            count_text(row.tokens),
            str(row.rounds),
            loss_text(row.loss),
            style=None if row.doing.startswith("training") else "dim",
        )
    return table


def _clock(passed: float, length: float) -> str:
    """How far the training is. It lasts longer on a busy machine, where the late peer needs its time."""
    more = f", then {passed - length:.0f} s more" if passed > length + 1 else ""
    return f"{min(passed, length):.0f} of {length:.0f} s{more}"


def _bar(share: float) -> str:
    full = round(BAR_WIDTH * min(1.0, max(0.0, share)))
    return "█" * full + "░" * (BAR_WIDTH - full)
