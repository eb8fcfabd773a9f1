"""The choice of the view: a live panel on a terminal, otherwise plain lines with a regular summary, or JSON lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TextIO

from dht.ground.fields import printable
from dht.ground.quantities import clock_text
from peer.console.word_wrap import fitting
from peer.events import peer_events as events
from peer.events.anchor_events import Fetched
from peer.events.event_log import to_json
from peer.panel.checklist import LABELS
from peer.panel.event_view import EventView
from peer.panel.key_bindings import Controls
from peer.panel.news import NewsLine
from peer.panel.scene import Scene, with_event, with_update
from peer.panel.sentences import capitalised, goodbye, summary
from peer.panel.updates import Action, Doing, LoadingStep, RunFacts, ViewUpdate
from peer.view.swarm_seen import SwarmSeen

Output = Literal["auto", "panel", "plain", "json"]
CATCH_UP_SECONDS = 5.0
"""Pause between two plain lines about a download."""
HEARTBEAT_SECONDS = 30.0
"""Longest pause in a plain log, which a reader has to wait to see that the peer is alive."""
NAMES_SECONDS = 5.0
"""Time that news waits for an unknown name, which arrives with the next observation of the members."""
_FOR_PEOPLE = (Fetched, events.JoinedRun, events.LeftRun)
"""Events in a plain log besides the news: joining and leaving."""


class PlainView(EventView):
    """Shows events of interest to people, one line each, and a summary every `HEARTBEAT_SECONDS`."""

    def __init__(self, stdout: TextIO, scene: Scene | None = None) -> None:
        self._stdout = stdout
        self._scene = scene or Scene()
        self._summed_up_at: float | None = None
        self._told_at = -math.inf
        self._now = self._scene.began_at
        self._awaited = ""
        self._waited_at = -math.inf
        self._unnamed: list[tuple[float, NewsLine]] = []

    def show(self, event: events.Event) -> None:
        num_news = self._scene.news[-1:]
        self._scene = with_event(self._scene, event)
        self._now = max(self._now, event.at)
        is_soon = (
            isinstance(event.fact, Fetched) and not event.fact.is_done and event.at - self._told_at < CATCH_UP_SECONDS
        )
        is_waiting = isinstance(event.fact, events.SwarmContact) and event.fact.state == "waiting"
        if isinstance(event.fact, events.SwarmContact) and is_waiting:
            is_soon = event.fact.reason == self._awaited and event.at - self._told_at < HEARTBEAT_SECONDS
            self._awaited, self._waited_at = event.fact.reason, event.at
        if is_waiting or isinstance(event.fact, _FOR_PEOPLE):
            if not is_soon:
                self._told_at = event.at
                self._print(event.at, self._scene.sentence_of(event))
        elif self._scene.news[-1:] != num_news:
            new = self._scene.news[-1]
            if new.remote is None or new.remote in self._scene.names:
                self._print_news(event.at, new)
            else:
                self._unnamed.append((event.at, new))

    def tell(self, update: ViewUpdate) -> None:
        super().tell(update)
        self._scene = with_update(self._scene, update, self._now)
        if isinstance(update, SwarmSeen):
            self._print_unnamed(update.at)
        if isinstance(update, LoadingStep) and (update.detail or update.is_done):
            self.note(f"{LABELS[update.name]}: {update.detail or 'ready'}")
        elif update == Doing("paused"):
            self.note("paused; this machine still serves others")
        elif update == Doing("resumed"):
            self.note("training continues")
        elif isinstance(update, RunFacts) and update.page:
            self.note(f"the run's page: {update.page}")

    def note(self, sentence: str) -> None:
        # Before its first event, a view without a clock has no time.
        clock = f"{clock_text(self._now)} " if self._now else ""
        _write_sentence(self._stdout, f"{clock}{capitalised(sentence)}")

    def tick(self, now: float) -> None:
        self._now = max(self._now, now)
        self._print_unnamed(now - NAMES_SECONDS)
        if self._summed_up_at is None:
            self._summed_up_at = now
        elif now - max(self._summed_up_at, self._waited_at) >= HEARTBEAT_SECONDS:
            self._summed_up_at = now
            self._print(now, summary(self._scene, now))

    def close(self) -> None:
        self._print_unnamed(math.inf)
        for line in goodbye(self._scene, self._now):
            _write_sentence(self._stdout, line)

    def _print_unnamed(self, until: float) -> None:
        """Print news from before `until` that waited for names."""
        due = [new for at, new in self._unnamed if at <= until]
        self._unnamed = [(at, new) for at, new in self._unnamed if at > until]
        for new in due:
            self._print_news(self._now, new)

    def _print_news(self, at: float, new: NewsLine) -> None:
        who = "" if new.remote is None else self._scene.name_of(new.remote)
        text = capitalised(new.text).replace("{who}", who)
        self._print(at, f"{text.rstrip('.')}.")

    def _print(self, at: float, sentence: str) -> None:
        if self._summed_up_at is None:
            self._summed_up_at = at
        _write_sentence(self._stdout, f"{clock_text(at)} {sentence}")


class JsonView(EventView):
    """Prints one JSON object per event to standard output; notes go to standard error."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr

    def show(self, event: events.Event) -> None:
        _write_line(self._stdout, printable(to_json(event)))

    def note(self, sentence: str) -> None:
        _write_sentence(self._stderr, capitalised(sentence))


def make_view(
    output: Output,
    stdout: TextIO,
    stderr: TextIO,
    environ: Mapping[str, str],
    scene: Scene | None = None,
    act: Callable[[Action], object] = lambda action: None,
    keyboard: TextIO | None = None,
    controls: Controls | None = None,
) -> EventView:
    """Return the view for `output`; "auto" is the panel on a capable terminal, and plain lines otherwise.

    Args:
        scene, act, keyboard, controls: see `PanelView`.
    """
    if output == "auto":
        output = "panel" if stdout.isatty() and environ.get("TERM") not in ("dumb", "") else "plain"
    scene = scene or Scene()
    if output == "json":
        return JsonView(stdout, stderr)
    if output == "panel":
        from peer.panel.live_panel import PanelView  # loads the drawing library, which plain lines do not need

        return PanelView(stdout, scene, act, keyboard, environ, controls=controls)
    return PlainView(stdout, scene)


def _write_sentence(stream: TextIO, text: str) -> None:
    """Write a sentence in lines of the terminal's width. Untrusted text is cleaned first, so that it cannot begin a
    line.
    """
    _write_line(stream, fitting(printable(text), stream))


def _write_line(stream: TextIO, text: str) -> None:
    """Write and flush; a closed reader (`| head`) or a full disk must not stop training."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):
        return
