"""What a demo says at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.cells import chop_cells
from rich.table import Table
from rich.text import Text

from dht.ground.quantities import count_text, loss_text, share_text, short_peer
from peer.console.plain_console import PlainConsole
from peer.demo.measuring_messages import Words
from peer.demo.progress_table import explanation
from peer.demo.summary import Summary

INDENT = 4


def print_report(
    console: PlainConsole,
    summary: Summary,
    words: Words,
    explained: Sequence[tuple[str, str]],
    out: Path | None,
    program: str,
) -> None:
    """The table of peers, the model's words, what the figures show, and what to type next."""
    table = Table(title="What each peer did", box=None, pad_edge=False, title_justify="left")
    for title in ("peer", "steps", "tokens", "rounds", "loss", "fate"):
        table.add_column(title, justify="left" if title in ("peer", "fate") else "right")
    for row in summary.rows:
        loss = loss_text(row.loss)
        figures = (str(row.steps), count_text(row.tokens), str(row.rounds), loss)
        table.add_row(f"{row.name} {short_peer(row.peer_id)}", *figures, row.doing)
    console.print(table)
    console.print()
    console.print(explanation(explained))
    console.print(f"\nAsked to go on from {words.said_first[:4]!r}, the model wrote before the training:")
    _print_words(console, words.said_first, "dim")
    if words.said_last is not None:
        console.print("and after it:")
        _print_words(console, words.said_last, "bold")
    console.print()
    for sentence in _findings(summary):
        console.print(sentence)
    console.print("\nNow for real:", style="bold")
    for line, what in _next_lines(program, out):
        console.print(f"  {line}", style="bold", soft_wrap=True)
        console.print(f"      {what}")


def _print_words(console: PlainConsole, said: str, style: str) -> None:
    for line in said.rstrip().expandtabs().splitlines():
        # Not between words: spaces are a part of what a model of letters writes.
        for part in chop_cells(line, max(20, console.width - 2 * INDENT)) or [""]:
            console.print(Text(" " * INDENT + part, style=style), soft_wrap=True)


def _next_lines(program: str, out: Path | None) -> list[tuple[str, str]]:
    """Commands that work as they stand, and what each does."""
    model = (f"{program} demo --model hf --out ./demo-model", "the same with a small Llama, which you keep")
    if out is not None:
        model = (shlex.join([*program.split(), "sample", "--model", str(out), "--prompt", "def "]), "it writes more")
    return [
        model,
        (f"{program} init my-run", "makes a run of your own, and says how to start it and how to join it"),
        (f"{program} doctor", "says what this machine and its line can give to a run of others"),
    ]


def _findings(summary: Summary) -> list[str]:
    first, last = loss_text(summary.loss_first), loss_text(summary.loss_last)
    return [
        f"Its validation loss, on text that no peer trained on: {first} nats before, {last} after.",
        f"Rounds: {summary.rounds_committed} were closed, {summary.rounds_failed} were given up.",
        f"A round moved {summary.bits_per_parameter_up:.3f} bits per parameter up and "
        f"{summary.bits_per_parameter_down:.3f} down, instead of 32.",
        f"Training waited for the network {share_text(summary.trainer_wait_fraction)} of the time.",
        f"All peers hold the same model, bit for bit: {_same(summary)}.",
        f"The late peer caught up and took part: {'yes' if summary.late_joiner_caught_up else 'NO'}.",
        f"The demo took {summary.seconds:.0f} s: {summary.start_seconds:.0f} to start, "
        f"{summary.training_seconds:.0f} to train, {summary.end_seconds:.0f} to fetch and measure the model.",
    ]


def _same(summary: Summary) -> str:
    if summary.anchors_equal:
        return "yes"
    return "NO" if summary.anchors_differ else "not seen, since they were never at one version"
