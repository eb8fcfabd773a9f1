"""How a peer shows itself: a live panel on a terminal, else one plain line per event, or JSON lines.

The pictures are drawn from a `PanelState` alone, so a test or the README draws the same panel without a swarm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dht.fields import printable
from dht.quantities import bit_rate_text, bytes_text, count_text, plural, seconds_text, short_peer
from peer.events.log import describe, to_json
from peer.events.peer_events import CatchUpProgressed, Event, TrainingProgressed, WaitingForPeers
from peer.panel.state import NUM_RECENT, PanelState, fold
from peer.plain_console import PlainConsole

CATCH_UP_SECONDS = 5.0
"""Between two plain lines about a download."""
HEARTBEAT_SECONDS = 30.0
"""A plain log says at least this often that the peer is alive: someone who looks waits no longer than that."""

REFRESH_SECONDS = 0.25
"""The panel is redrawn at most this often; drawing takes about 3 ms."""

WIDTH = 80
"""Columns of the smallest terminal that the panel must fit; it needs 19 of its 24 lines."""


class EventView(Protocol):
    """What shows the events of one peer. No method raises, whatever becomes of the output."""

    def show(self, event: Event) -> None:
        """Take in one event."""
        ...

    def tick(self, now: float) -> None:
        """Let time pass (unix seconds); call it about once a second."""
        ...

    def note(self, sentence: str) -> None:
        """Tell the owner something that is not an event, e.g. a warning of the event log."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


def make_view(
    output: Literal["auto", "panel", "plain", "json"], stdout: TextIO, stderr: TextIO, environ: Mapping[str, str]
) -> EventView:
    """The view for `output`; "auto" is the panel on a capable terminal and plain lines everywhere else."""
    if output == "auto":
        capable = stdout.isatty() and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR")
        output = "panel" if capable else "plain"
    if output == "json":
        return JsonView(stdout, stderr)
    return PanelView(stdout) if output == "panel" else PlainView(stdout)


class PlainView:
    """One line per event, and a heartbeat when nothing else has been said for `HEARTBEAT_SECONDS`."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._state = PanelState()
        self._spoke_at: float | None = None
        self._awaited = ""

    def show(self, event: Event) -> None:
        self._state = fold(self._state, event)
        # Progress comes every few steps; the heartbeat carries it.
        spoke_at = -math.inf if self._spoke_at is None else self._spoke_at
        is_soon = isinstance(event.fact, CatchUpProgressed) and event.at - spoke_at < CATCH_UP_SECONDS
        if isinstance(event.fact, WaitingForPeers):
            is_soon = event.fact.reason == self._awaited and event.at - spoke_at < HEARTBEAT_SECONDS
            self._awaited = event.fact.reason
        if not isinstance(event.fact, TrainingProgressed) and not is_soon:
            self._print(event.at, describe(event))

    def tick(self, now: float) -> None:
        if self._spoke_at is None:
            self._spoke_at = now
        elif now - self._spoke_at >= HEARTBEAT_SECONDS:
            self._print(now, heartbeat(self._state, now))

    def note(self, sentence: str) -> None:
        _write_line(self._stdout, sentence)

    def close(self) -> None:
        pass

    def _print(self, at: float, sentence: str) -> None:
        self._spoke_at = at
        _write_line(self._stdout, f"{datetime.fromtimestamp(at):%H:%M:%S} {sentence}")


class JsonView:
    """One JSON object per event on standard output; notes go to standard error."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout = stdout
        self._stderr = stderr

    def show(self, event: Event) -> None:
        _write_line(self._stdout, to_json(event))

    def tick(self, now: float) -> None:
        pass

    def note(self, sentence: str) -> None:
        _write_line(self._stderr, sentence)

    def close(self) -> None:
        pass


class _PatientConsole(PlainConsole):
    def on_broken_pipe(self) -> None:
        # rich would end the process here.
        self.quiet = True


class PanelView:
    """The live panel; notes scroll by above it and stay."""

    def __init__(self, stdout: TextIO) -> None:
        self._console = _PatientConsole(file=stdout)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._state = PanelState()
        self._now = 0.0
        self._drawn_at: float | None = None
        self._broken = False

    def show(self, event: Event) -> None:
        self._state = fold(self._state, event)
        self._now = max(self._now, event.at)
        if self._drawn_at is None or self._now - self._drawn_at >= REFRESH_SECONDS:
            self._draw()

    def tick(self, now: float) -> None:
        self._now = max(self._now, now)
        self._draw()

    def note(self, sentence: str) -> None:
        if not self._broken:
            try:
                self._console.print(Text(printable(sentence)))
            except (OSError, ValueError):
                self._broken = True

    def close(self) -> None:
        self._draw()
        try:
            self._live.stop()
        except (OSError, ValueError):
            self._broken = True

    def _draw(self) -> None:
        # A closed terminal must not stop the training; the event log still has everything.
        if self._broken:
            return
        try:
            if not self._live.is_started:
                self._live.start()
            picture = draw(self._state, self._now, ascii_only=self._console.options.ascii_only)
            self._live.update(picture, refresh=True)
            self._drawn_at = self._now
        except (OSError, ValueError):
            self._broken = True


def draw(state: PanelState, now: float, *, ascii_only: bool = False) -> RenderableType:
    """The panel at time `now`; fits 80 columns and 24 lines and uses only colours of the terminal's own theme."""
    facts = Table.grid(padding=(0, 2), expand=True)
    facts.add_column(style="bold", no_wrap=True, width=9)
    facts.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for label, lines in _facts(state, now, ascii_only):
        for index, line in enumerate(lines):
            facts.add_row(label if index == 0 else "", Text(printable(line)))
    news = Table.grid(padding=(0, 2), expand=True)
    news.add_column(style="dim", no_wrap=True, width=9, justify="right")
    news.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for at, sentence in state.recent:
        news.add_row(_age(at, now), Text(printable(sentence)))
    for _ in range(NUM_RECENT - len(state.recent)):
        news.add_row("", "")
    age = "" if state.started_at is None else f" · {seconds_text(round(max(0.0, now - state.started_at)))}"
    title = Text(printable(f"{state.run_id or 'murmuration'} · {state.phase}{age}"), style="bold", overflow="ellipsis")
    if ascii_only:
        title = Text(title.plain.replace("·", "-"), style="bold", overflow="ellipsis")
    hints = Text("Ctrl+C leaves the run", style="dim")
    return Panel(Group(facts, Text(""), news), title=title, title_align="left", subtitle=hints, subtitle_align="right")


def heartbeat(state: PanelState, now: float) -> str:
    """One line that says how this peer is doing; every figure in it is as old as it says."""
    if state.last_event_at is None:
        return "Starting."
    if state.is_seed:
        return f"Still {state.phase}: versions {_versions(state)}, {plural(state.num_peers, 'peer')}."
    loss = "unknown" if state.train_loss is None else f"{state.train_loss:.4f}"
    last = "no round yet" if state.last_round_at is None else f"last round {_age(state.last_round_at, now)}"
    return (
        f"Still {state.phase}: inner step {state.inner_steps}, loss {loss}, {count_text(state.tokens_per_second)} "
        f"tokens/s, {plural(state.num_peers, 'peer')}, {plural(state.rounds_contributed, 'round')} contributed to, "
        f"{_run_progress(state)}, {last}."
    )


def _catch_up(progress: CatchUpProgressed, ascii_only: bool) -> list[str]:
    full, empty = "#." if ascii_only else "█░"
    num_full = int(40 * progress.share)
    return [
        f"{full * num_full}{empty * (40 - num_full)} {progress.share:.0%} of {bytes_text(progress.total_bytes)}",
        f"{bit_rate_text(progress.bits_per_second)}, {seconds_text(progress.seconds_left)} left",
    ]


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """`values` as at most `width` bars between their smallest and largest; neighbours are averaged to fit."""
    bars = "_.-=+*#" if ascii_only else "▁▂▃▄▅▆▇█"
    num_bars = min(width, len(values))
    if num_bars == 0:
        return ""
    cuts = [len(values) * index // num_bars for index in range(num_bars + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return bars[0] * num_bars
    return "".join(bars[round((mean - low) / (high - low) * (len(bars) - 1))] for mean in means)


def _facts(state: PanelState, now: float, ascii_only: bool) -> list[tuple[str, list[str]]]:
    train = "unknown" if state.train_loss is None else f"{state.train_loss:.4f}"
    held_out = "not measured yet" if state.held_out_loss is None else f"{state.held_out_loss:.4f}"
    last = "none yet" if state.last_round_at is None else _age(state.last_round_at, now)
    if state.is_seed:
        return [
            ("Seed", [f"keeps a model of {count_text(state.num_parameters)} parameters for newcomers; does not train"]),
            ("Served", [f"{plural(len(state.served), 'newcomer')}, {bytes_text(state.served_bytes)}"]),
            (
                "Swarm",
                [
                    f"{plural(len(state.others), 'other')}; last round {last}",
                    f"versions {' '.join(map(str, state.versions)) or 'unknown'}",
                    *_refusals(state, now),
                ],
            ),
            *([("Catch-up", _catch_up(state.catch_up, ascii_only))] if state.catch_up is not None else []),
            *_network(state, now),
        ]
    return [
        (
            "Device",
            [
                f"{state.device or 'not chosen yet'}, model of {count_text(state.num_parameters)} parameters",
                f"{count_text(state.tokens_per_second)} tokens/s, {state.wait_fraction:.2%} of the time waiting",
            ],
        ),
        (
            "Your work",
            [
                *_work(state),
                f"as {short_peer(state.peer_id or '')}",
            ],
        ),
        (
            "Swarm",
            [
                f"{plural(state.num_peers, 'peer')} with this one; last round {last}",
                f"{_run_progress(state)}; versions {_versions(state)}",
                *_refusals(state, now),
            ],
        ),
        ("Loss", [f"train {train}, held-out {held_out}", sparkline(state.losses, 60, ascii_only=ascii_only)])
        if state.catch_up is None
        else ("Catch-up", _catch_up(state.catch_up, ascii_only)),
        *_network(state, now),
    ]


def _versions(state: PanelState) -> str:
    return " ".join(map(str, state.versions)) or "unknown"


def _run_progress(state: PanelState) -> str:
    done = count_text(state.run_tokens)
    if state.budget_tokens is None:
        progress = f"{done} tokens committed"
    else:
        progress = f"{min(1.0, state.run_tokens / state.budget_tokens):.0%} of {count_text(state.budget_tokens)} tokens"
    return progress if state.learning_rate is None else f"{progress}, rate {state.learning_rate:.2g}"


def _work(state: PanelState) -> list[str]:
    """Of this session, and with earlier sessions also in all."""

    def line(tokens: int, inner_steps: int, rounds: int) -> str:
        return f"{count_text(tokens)} tokens in {plural(inner_steps, 'inner step')}, {plural(rounds, 'round')}"

    in_all = line(state.tokens, state.inner_steps, state.rounds_contributed)
    if not state.earlier_inner_steps and not state.earlier_rounds:
        return [in_all]
    session = line(
        max(0, state.tokens - state.earlier_tokens),
        max(0, state.inner_steps - state.earlier_inner_steps),
        max(0, state.rounds_contributed - state.earlier_rounds),
    )
    return [f"{session} in this session", f"{in_all} in all"]


def _network(state: PanelState, now: float) -> list[tuple[str, list[str]]]:
    up, down = state.bits_per_second(now)
    lines = [
        f"up {bit_rate_text(up)} ({bytes_text(state.bytes_up)} in this session)",
        f"down {bit_rate_text(down)} ({bytes_text(state.bytes_down)} in this session)",
    ]
    return [("Network", lines)]


def _refusals(state: PanelState, now: float) -> list[str]:
    """One line about a remote that is left out now; none when nobody is. `peer status` has what was refused before."""
    left_out = [one for one in state.refusals if one.is_left_out(now)]
    if not left_out:
        return []
    others = f"; {len(left_out) - 1} more are left out" if len(left_out) > 1 else ""
    return [f"{left_out[0].sentence(now)}{others}"]


def _age(at: float, now: float) -> str:
    seconds = max(0, round(now - at))
    if seconds < 60:
        return f"{seconds} s ago"
    return f"{seconds // 60} min ago" if seconds < 5940 else f"{seconds // 3600} h ago"


def _write_line(stream: TextIO, text: str) -> None:
    """Write and flush; a reader that has gone away (`| head`) or a full disk must not stop the training."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(printable(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):
        return
