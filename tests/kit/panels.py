"""The panel of `peer join` as text and as a picture, and an evening of a volunteer to draw it from."""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.host import PeerId
from dht.records.evaluation import Evaluation
from peer.console.plain_console import PlainConsole
from peer.events.anchor_events import Fetched
from peer.events.path_events import ReachabilityFound, RelayChanged
from peer.events.peer_events import (
    Evaluated,
    Event,
    JoinedRun,
    LeftRun,
    MemberChanged,
    RunChanged,
    StateServed,
    SwarmContact,
    TrainingProgressed,
)
from peer.panel.key_bindings import Controls, Page, hints
from peer.panel.scene import Scene, scene_of, with_event, with_update
from peer.panel.screens import screen
from peer.panel.updates import Doing, LineLimits, LoadingStep, RunFacts
from peer.view.run_view import RunView
from peer.view.swarm_seen import MemberSeen, OwnAddresses, SwarmSeen

RUN_ID = "starlings.kqy24dqehzup6gznfold"
ME = PeerId("12D3KooWSK2F7a2amC2i2i64ZnkTKtSLjMcrh8CWmD7GxdnCv7y3")
KIRAN, JO, LINDSTROEM = PeerId("12D3KooWkiran"), PeerId("12D3KooWjojojo"), PeerId("12D3KooWlind")
STARTED_AT = 1_764_180_000.0
NOW = STARTED_AT + 8040.0
FACTS = RunFacts(RUN_ID, goal_tokens=2_000_000_000, page="http://203.0.113.7")
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{ME}"


def progress(at: float, tokens: int, loss: float | None, **more: float) -> Event:
    """A report of the trainer."""
    fact = TrainingProgressed(tokens // 512, tokens, loss, 3500.0, 0.02, run_tokens=int(more.get("run_tokens", 0)))
    return Event(at, ME, fact)


def committed(at: float, contributors: tuple[PeerId, ...] = (ME, KIRAN)) -> Event:
    """A round that closed."""
    fact = RoundCommitted(
        *(1, 4, contributors, 0.7, 24_000, 0, 1.0),
        *(3_000_000, 4_500_000, 1, 1),
    )
    return Event(at, ME, fact)


NEWCOMERS = tuple(PeerId(f"12D3KooWnew{number}") for number in range(14))


@functools.cache
def an_evening(*, is_seed: bool = False, facts: RunFacts = FACTS) -> Scene:
    """Two hours and a quarter of Ada's machine in a run of fourteen people."""
    scene = scene_of(RUN_ID, LineLimits(10.0, None), is_seed=is_seed)
    device = "seed" if is_seed else "RTX 3060"
    told = [
        facts,
        OwnAddresses((ADDRESS,)),
    ]
    for one in told:
        scene = with_update(scene, one)
    events = [Event(STARTED_AT, ME, MemberChanged(KIRAN)), Event(STARTED_AT, ME, MemberChanged(JO))]
    events.append(Event(STARTED_AT, ME, JoinedRun(RUN_ID, device, 860_000, (0, 0, 0, 0))))
    for minute in range(1, 135):
        at = STARTED_AT + 60 * minute
        loss = 1.9 + 3.4 * math.exp(-minute / 18) + 0.03 * math.sin(minute)
        run_tokens = 1_100_000_000 + 900_000 * minute
        own = (0, None) if is_seed else (31_000 * minute, loss)
        events.append(progress(at, *own, run_tokens=run_tokens))
        if minute % 30 == 15 and not is_seed:
            events.append(Event(at, ME, Evaluated(loss, minute)))
        events.append(committed(at))
    events += [
        Event(NOW - 300, ME, MemberChanged(JO, "it said goodbye")),
        Event(NOW - 240, ME, ReachabilityFound(KIRAN, True, ("/dns4/home.example.org/tcp/4001",))),
        Event(NOW - 60, ME, MemberChanged(LINDSTROEM)),
        Event(NOW - 4, ME, committed(NOW).fact),
    ]
    if is_seed:
        events.append(Event(NOW - 200, ME, RelayChanged(own_relay="full")))
        events += [Event(NOW - 180 + n, ME, StateServed(newcomer, 543_000)) for n, newcomer in enumerate(NEWCOMERS)]
        events += [Event(NOW - 160 + n, ME, MemberChanged(newcomer)) for n, newcomer in enumerate(NEWCOMERS[12:])]
    for event in sorted(events, key=lambda event: event.at):
        scene = with_event(scene, event)
    # Two of those served are pages; the others but the last came so long ago that no news of it is left.
    scene = replace(scene, own=replace(scene.own, met=scene.own.met | frozenset(NEWCOMERS[2:])))
    names = ((KIRAN, "Kiran"), (JO, "Jo"), (LINDSTROEM, "Lindström"))
    scene = with_update(scene, seen(NOW - 2, names))
    return with_update(scene, seen(NOW - 1, ()))


def with_own(scene: Scene, **changes: Any) -> Scene:
    """The scene with other figures of its own peer."""
    return replace(scene, own=replace(scene.own, **changes))


def seen(at: float, names: tuple[tuple[PeerId, str], ...]) -> SwarmSeen:
    """A look at the swarm."""
    others = [("Kiran", KIRAN, 5_100_000), ("Jo", JO, 3_900_000), ("Lindström", LINDSTROEM, 1_200_000)]
    rows = [MemberSeen(name, peer_id, tokens, 2900.0, "training") for name, peer_id, tokens in others]
    rows.insert(1, MemberSeen("Ada", ME, 4_154_000, 3500.0, "training", is_own=True))
    run = RunView(at, num_training=12, num_seeds=1, evaluation=Evaluation(1.93, 500))
    return SwarmSeen(at, "Ada", ME, run, tuple(rows), names, 12, 0, 11)


def states_of_a_trainer() -> dict[str, Scene]:
    """What a volunteer may find the panel at, beside a run that goes well."""
    evening = an_evening()
    first = with_event(a_beginning(), Event(NOW, ME, JoinedRun(RUN_ID, "cpu, 2 threads", 860_000, (0, 0, 0, 0))))
    return {
        "paused": with_update(evening, Doing("paused"), NOW - 3),
        "nobody answers": with_event(evening, Event(NOW, ME, SwarmContact("lost", 60.0))),
        "goal reached": with_event(evening, progress(NOW, 4_154_000, 1.929, run_tokens=2_000_000_000)),
        "just in": with_update(first, RunFacts(RUN_ID)),
        "compiling": with_update(with_update(first, RunFacts(RUN_ID)), Doing("compiling"), NOW),
        "relayed": with_event(
            with_event(evening, Event(NOW - 60, ME, ReachabilityFound(KIRAN, False, ()))),
            Event(NOW - 50, ME, RelayChanged((KIRAN,))),
        ),
        "ended": with_event(evening, Event(NOW, ME, RunChanged(end_version=2000))),
        "left": with_event(evening, Event(NOW, ME, LeftRun("asked to", 8000, 4_154_000, 135))),
    }


def a_beginning() -> Scene:
    """A peer that fetches the state."""
    scene = scene_of(RUN_ID, LineLimits(), is_seed=False)
    for step in (
        LoadingStep("key", "Ada", is_done=True),
        LoadingStep("program", "cpu", is_done=True),
        LoadingStep("run", "found", is_done=True),
        LoadingStep("model", "860 k parameters on cpu", is_done=True),
        LoadingStep("state"),
    ):
        scene = with_update(scene, step)
    return with_event(scene, Event(NOW, ME, Fetched(4_300_000, 17.351, total_bytes=10_000_000)))


def a_wait() -> Scene:
    """A peer that finds nobody."""
    scene = with_update(scene_of(RUN_ID, LineLimits(), is_seed=False), LoadingStep("key", "Ada", is_done=True))
    scene = with_update(scene, LoadingStep("program", "cpu", is_done=True))
    return with_event(scene, Event(NOW, ME, SwarmContact("waiting", 12.0, reason="none of 1 known addresses answers")))


def lines_of(
    scene: Scene,
    width: int,
    height: int,
    page: Page = "main",
    now: float = NOW,
) -> list[Text]:
    """The picture with its last line, as the painter puts them on a terminal."""
    controls = Controls(page, can_rest=not scene.is_seed)
    picture = screen(scene, controls, now, width, height - 1)
    picture += [Text()] * (height - 1 - sum(max(1, -(-line.cell_len // width)) for line in picture))
    return [
        *picture,
        Text(hints(controls, has_keys=True, is_resting=scene.is_resting, room=width - 1), style="bright_black"),
    ]


def text_of(lines: Sequence[Text]) -> str:
    """Without colours and without blanks at the ends of lines."""
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def render_svg(lines: Sequence[Text], width: int) -> str:
    """An SVG picture; equal lines give equal bytes."""
    console = PlainConsole(file=io.StringIO(), width=width, record=True, force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(line)
    picture = console.export_svg(title="peer join", unique_id="panel")
    # No font from elsewhere; whoever looks has one of their own.
    return re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
