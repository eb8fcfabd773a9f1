"""How a peer shows itself without a panel: plain lines with a summary now and then, or JSON lines."""

from __future__ import annotations

import math
from typing import TextIO

from dht.ground.fields import printable
from dht.ground.quantities import clock_text, count_text, loss_text, plural, seconds_text
from peer.console.first_lines import LABELS
from peer.console.word_wrap import fitting
from peer.events import peer_events as events
from peer.events.anchor_events import Fetched
from peer.events.event_log import to_json
from peer.panel.scene.news import NewsLine
from peer.panel.scene.scene import Scene, with_event, with_update
from peer.panel.scene.updates import Compiling, Leaving, LoadingStep, Remark, Resting, RunFacts, ViewUpdate
from peer.panel.screens.goodbye import goodbye
from peer.view.swarm_seen import OwnAddresses, SwarmSeen

CATCH_UP_SECONDS = 5.0
"""Between two plain lines about a download."""
HEARTBEAT_SECONDS = 30.0
"""A plain log says at least this often that the peer is alive: someone who looks waits no longer than that."""
NAMES_SECONDS = 5.0
"""News of somebody whose name is not known waits this long for it; the next look at the members brings it."""
_FOR_PEOPLE = (Fetched, events.JoinedRun, events.LeftRun)
"""Events that a plain log has beside the news: how a peer gets into a run, and out of it."""


class _Lines:
    """Lines, which take nothing of a terminal.

    Args:
        notes: where sentences for the owner go.
    """

    def __init__(self, notes: TextIO) -> None:
        self._notes = notes

    def tell(self, update: ViewUpdate) -> None:
        if isinstance(update, Remark | Leaving) or (isinstance(update, Compiling) and update.is_compiling):
            self.note(update.text)
        elif isinstance(update, OwnAddresses):
            for sentence in update.sentences():
                self.note(sentence)

    def note(self, sentence: str) -> None:
        _write_sentence(self._notes, _capitalised(sentence))

    def tick(self, now: float) -> None:
        pass

    def suspend_soon(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlainView(_Lines):
    """Events that concern people, one line each, and a line about everything every `HEARTBEAT_SECONDS`.

    Args:
        is_verbose: all events, and the line only when nothing else was said for this long.
    """

    def __init__(self, stdout: TextIO, scene: Scene | None = None, *, is_verbose: bool = False) -> None:
        super().__init__(stdout)
        self._stdout = stdout
        self._scene = scene or Scene()
        self._is_verbose = is_verbose
        self._spoke_at: float | None = None
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
        if is_waiting or isinstance(event.fact, _FOR_PEOPLE) or self._is_verbose:
            # Progress comes every few steps; the heartbeat carries it.
            if not isinstance(event.fact, events.TrainingProgressed) and not is_soon:
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
        elif isinstance(update, Resting):
            self.note("paused; this machine serves others meanwhile" if update.is_resting else "training goes on")
        elif isinstance(update, RunFacts) and update.page:
            self.note(f"the run's page: {update.page}")

    def note(self, sentence: str) -> None:
        # Before the first event of a view without a clock nobody knows the time.
        clock = f"{clock_text(self._now)} " if self._now else ""
        _write_sentence(self._stdout, f"{clock}{_capitalised(sentence)}")

    def tick(self, now: float) -> None:
        self._now = max(self._now, now)
        self._print_unnamed(now - NAMES_SECONDS)
        if self._spoke_at is None:
            self._spoke_at = now
        elif now - max(self._spoke_at, self._waited_at) >= HEARTBEAT_SECONDS:
            self._spoke_at = now
            told = heartbeat(self._scene, now) if self._is_verbose else summary(self._scene, now)
            self._print(now, told)

    def close(self) -> None:
        self._print_unnamed(math.inf)
        for line in goodbye(self._scene, self._now):
            _write_sentence(self._stdout, line)

    def _print_unnamed(self, until: float) -> None:
        """News from before `until` that waited for names."""
        due = [new for at, new in self._unnamed if at <= until]
        self._unnamed = [(at, new) for at, new in self._unnamed if at > until]
        for new in due:
            self._print_news(self._now, new)

    def _print_news(self, at: float, new: NewsLine) -> None:
        who = "" if new.remote is None else self._scene.name_of(new.remote)
        text = _capitalised(new.text).replace("{who}", who)
        self._print(at, f"{text.rstrip('.')}.")

    def _print(self, at: float, sentence: str) -> None:
        if self._is_verbose or self._spoke_at is None:
            self._spoke_at = at
        _write_sentence(self._stdout, f"{clock_text(at)} {sentence}")


class JsonView(_Lines):
    """One JSON object per event on standard output; notes go to standard error."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        super().__init__(stderr)
        self._stdout = stdout

    def show(self, event: events.Event) -> None:
        _write_line(self._stdout, printable(to_json(event)))


def summary(scene: Scene, now: float) -> str:
    """One line for people: what this peer does, how far it and the run are."""
    state, swarm = scene.own, scene.swarm
    if state.last_event_at is None or not scene.loading.is_over:
        is_found = not scene.is_seed and not any(line.is_waiting for line in scene.loading.lines)
        return "Still starting." if is_found and state.phase == "waiting for peers" else f"Still {state.phase}."
    others = scene.others_here
    if scene.lone_rounds and (scene.swarm.num_other_trainers > 1 or not scene.is_seed):
        from peer.panel.screens.health_sentence import lone_words  # with it the library that draws

        others += f". {lone_words(scene)}"
    if scene.is_seed:
        served = f"{plural(state.num_newcomers, 'newcomer')} served"
        return f"Seed: {served}, {scene.num_training} training, {others}."
    speed = f"{count_text(state.tokens_per_second)} tokens/s"
    parts = [
        "Paused" if scene.is_resting else _capitalised(scene.phase),
        scene.own_work,
        plural(state.rounds_contributed, "round"),
        *([] if scene.is_resting or scene.is_compiling else [speed]),
    ]
    if state.train_loss is not None:
        parts.append(f"loss {loss_text(state.train_loss, scene.run.loss_unit)}")
    row = swarm.own_row
    if row is not None and row.tokens and swarm.num_ranked > 1:
        parts.append(f"rank {row.rank} of {swarm.num_ranked} met")
    if scene.own.joined_at is not None:
        parts.append(seconds_text(round(max(0.0, now - scene.own.joined_at))))
    return f"{parts[0]}: {', '.join(parts[1:])}, {others}."


def heartbeat(scene: Scene, now: float) -> str:
    """One line that says how this peer is doing; every figure in it is as old as it says."""
    state, run = scene.own, scene.run
    if state.last_event_at is None:
        return "Starting."
    from peer.panel.screens.key_screens import age, parts_averaged, run_progress  # with it the library that draws

    if state.is_seed:
        return f"Still {state.phase}: {parts_averaged(state)}, {scene.others_here}."
    loss = loss_text(state.train_loss, run.loss_unit)
    last = "no round yet" if state.last_round_at is None else f"last round {age(state.last_round_at, now)}"
    return (
        f"Still {scene.phase}: inner step {state.inner_steps}, loss {loss}, {count_text(state.tokens_per_second)} "
        f"tokens/s, {scene.others_here}, "
        f"{plural(state.rounds_contributed, 'round')} contributed to, "
        f"{run_progress(scene)}, {last}."
    )


def _capitalised(sentence: str) -> str:
    """With a capital first letter."""
    return sentence[:1].upper() + sentence[1:]


def _write_sentence(stream: TextIO, text: str) -> None:
    """In lines of a terminal's width. Text of others is cleaned first: it begins no line."""
    _write_line(stream, fitting(printable(text), stream))


def _write_line(stream: TextIO, text: str) -> None:
    """Write and flush; a reader that has gone away (`| head`) or a full disk must not stop the training."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):
        return
