"""The checklist as lines."""

from __future__ import annotations

from rich.text import Text

from peer.console.first_lines import LABEL_WIDTH, LABELS
from peer.panel.scene.loading import Line
from peer.panel.scene.scene import Scene
from peer.panel.screens.text_lines_that_fit import ACCENT, CARE, DIM, GOOD, joined, part, wrapped
from peer.panel.screens.training_screen import news_lines

SPINNER = "⠋⠙⠹⠸⠼⠴"
FRAMES_PER_SECOND = 5


def loading_screen(scene: Scene, now: float, width: int, height: int) -> list[Text]:
    """What is done, under way and to come until this peer is a member."""
    doing = "opening as a seed" if scene.is_seed else "joining"
    lines = [joined([part("≋ ", ACCENT), part(scene.run.name, "bold"), part(" · ", DIM), part(doing, CARE)]), Text()]
    for step in scene.loading.lines:
        sign, style = _sign(step, now)
        label = part(f" {sign} ", style), part(f"{LABELS[step.name]:<{LABEL_WIDTH}}", "" if step.is_begun else DIM)
        room = max(10, width - LABEL_WIDTH - 3)
        for index, told in enumerate(wrapped(part(step.text, CARE if step.is_waiting else ""), room)):
            before = joined(label) if index == 0 else Text(" " * (LABEL_WIDTH + 3))
            lines.append(joined([before, told]))
    if scene.is_seed and (command := scene.join_command):
        lines += [Text(), part(scene.join_heading, "bold"), part(command, ACCENT)]
    return [*lines, Text(), *news_lines(scene, width, height - len(lines) - 1)]


def _sign(step: Line, now: float) -> tuple[str, str]:
    if step.is_done:
        return "✓", GOOD
    if not step.is_begun:
        return "·", DIM
    return SPINNER[int(now * FRAMES_PER_SECOND) % len(SPINNER)], CARE
