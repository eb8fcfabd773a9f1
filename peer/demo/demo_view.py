"""The view of a demo: a table that changes in place on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dht.ground.quantities import count_text, loss_text
from peer.console.plain_console import PlainConsole
from peer.demo.figures import newest_evaluation, num_rounds_of
from peer.view.own_view import OwnView

REDRAWN_PER_SECOND = 4
"""Refresh rate for a smooth clock, which takes a few percent of one core."""
LINE_SECONDS = 10.0
"""Pause between two lines of figures in a pipe."""
BAR_WIDTH = 30


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures shown at one moment.

    Attributes:
        peers: each peer's activity and view, by name.
        seconds: seconds of training so far, and in total; None: it has not begun.
        rounds_since_kill: rounds closed since a peer was killed; None: no peer was killed.
    """

    peers: Mapping[str, tuple[str, OwnView]]
    seconds: tuple[float, float] | None = None
    rounds_since_kill: int | None = None
    page: str | None = None

    @property
    def views(self) -> list[OwnView]:
        return [own for _, own in self.peers.values()]

    def of_model(self) -> str:
        """Return the rounds and the validation loss of the peers' shared model."""
        evaluation = newest_evaluation(self.views)
        loss = "not measured yet"
        if evaluation is not None:
            loss = f"{loss_text(evaluation.loss)} nats after round {evaluation.version}"
        return f"rounds: {num_rounds_of(self.views)}  validation loss: {loss}"

    def clock(self) -> str:
        """Return the progress of the training, which lasts longer on a busy machine, where the late peer needs time."""
        if self.seconds is None:
            return ""
        passed, length = self.seconds
        more = f", then {passed - length:.0f} s more" if passed > length + 1 else ""
        return f"{min(passed, length):.0f} of {length:.0f} s{more}"


class DemoView:
    """Shows a demo until `close`, which may be called twice."""

    def __init__(self, console: PlainConsole, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._stage, self._stage_at, self._told_at = "Starting", now(), now()
        self._figures = Figures({})
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._picture,
                refresh_per_second=REDRAWN_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
                transient=True,
            )
            self._live.start(refresh=True)

    def say(self, sentence: str) -> None:
        """Print a line that stays."""
        self._told_at = self._now()
        self._console.print(sentence)

    def stage(self, sentence: str) -> None:
        """Show the current stage."""
        self._stage, self._stage_at = sentence, self._now()
        if self._live is None:
            self.say(f"{sentence} ...")

    def look(self, figures: Figures) -> None:
        """Show the newest figures."""
        page, self._figures = self._figures.page, figures
        if self._live is None and figures.page not in (None, page):
            self.say(f"The page of this swarm: {figures.page}")
        if self._live is None and self._now() - self._told_at >= LINE_SECONDS:
            self.say(progress_line(figures) if figures.seconds else f"  {self._now() - self._stage_at:.0f} s so far")

    def close(self) -> None:
        """Remove the table."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _picture(self) -> RenderableType:
        return picture(self._figures, f"{self._stage} ({self._now() - self._stage_at:.0f} s)")


def progress_line(figures: Figures) -> str:
    """Return the figures in one line."""
    steps = " ".join(f"{name} {own.inner_steps} ({doing})" for name, (doing, own) in figures.peers.items())
    return f"  {figures.clock()}  steps: {steps}  {figures.of_model()}"


def picture(figures: Figures, stage: str) -> RenderableType:
    """Return the table and the current stage."""
    parts = [Text(), Text(stage)]
    if figures.seconds is not None:
        passed, length = figures.seconds
        full = round(BAR_WIDTH * min(1.0, passed / length))
        bar = "█" * full + "░" * (BAR_WIDTH - full)
        parts.insert(1, Text(f"{bar}  {figures.clock()}", style="bold"))
    shown: list[RenderableType] = [*parts]
    if figures.peers:
        model = Text(f"The shared model: {figures.of_model()}", "bold")
        shown += [Text(), peers_table(figures.peers), Text(), model]
    if figures.rounds_since_kill is not None:
        shown.append(Text(f"Rounds completed by the others since the kill: {figures.rounds_since_kill}"))
    if figures.page is not None:
        shown.append(Text(f"Page: {figures.page}"))
    return Group(*shown, Text("Ctrl+C ends the demo and leaves nothing behind."))


def peers_table(peers: Mapping[str, tuple[str, OwnView]]) -> Table:
    """Return a table of each peer's activity and work."""
    titles: Sequence[str] = ("peer", "doing", "steps", "tokens", "rounds", "loss")
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in titles[:2] else "right", no_wrap=True)
    for name, (doing, own) in peers.items():
        figures = (str(own.inner_steps), count_text(own.tokens), str(own.confirmed_rounds), loss_text(own.train_loss))
        table.add_row(name, doing, *figures, style=None if doing.startswith("training") else "dim")
    return table
