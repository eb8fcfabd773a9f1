"""Text of others on its way to a terminal: no escape sequence, no control, no markup, whatever command prints it."""

from __future__ import annotations

import io
import logging
import os
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from dht.ground.errors import LocalFault, PeerFault
from dht.ground.fields import printable
from dht.records.peer_record import PeerRecord
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.config.manifest import RunManifest
from peer.console.plain_console import PlainConsole
from peer.console.plain_output import LAYOUT, PlainOutput, reader_has_left
from peer.events.peer_events import Event, RefusedPeer
from peer.observe.observer import RunObserver
from peer.observe.status import _print_table, status_facts
from peer.panel.plain_and_json_views import PlainView
from tests.kit.network.memory_networks import fixed_network, named
from tests.kit.rounds.donor_scene import Donor, World

HOSTILE = "a\x1b]0;owned\x07b\x1b[2Jc\x9b31md\u202egnp.exe\u2066\u200be\rf\x08\udc80g"
"""A title, a cleared screen, an eight-bit escape, bidirectional and invisible characters, an overwritten line."""
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")


def is_plain(text: str, keep: str = LAYOUT) -> bool:
    return all(one in keep or unicodedata.category(one) not in _OBEYED for one in text)


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_a_terminal_obeys_or_hides_is_printable(text: str) -> None:
    assert is_plain(printable(text), "")
    assert is_plain(printable(text, LAYOUT))
    assert printable(printable(text)) == printable(text)
    assert len(printable(text)) == len(text)


def test_what_a_fault_quotes_is_one_plain_line() -> None:
    fault = PeerFault("12D3\x1b[31m", f"said {HOSTILE}\n12:00:00 All is well.")
    assert is_plain(str(fault), "")
    assert is_plain(fault.what, "")
    assert "said a" in fault.what


def _prints() -> None:
    print(HOSTILE)
    print(HOSTILE, file=sys.stderr)


def _fails() -> None:
    raise LocalFault(HOSTILE)


def _breaks() -> None:
    raise RuntimeError(HOSTILE)


def _logs() -> None:
    # Without handlers of its own, as in a command, what is logged goes where standard error is now.
    logging.Logger("hostile").warning("heard %s", HOSTILE)
    handler = logging.StreamHandler()
    handler.emit(logging.LogRecord("x", logging.WARNING, "", 1, "heard %s", (HOSTILE,), None))


def _draws() -> None:
    table = Table()
    table.add_column(HOSTILE)
    table.add_row(f"[/nope] [red]{HOSTILE} :skull:")
    PlainConsole().print(table)
    PlainConsole().print(f"[/nope]{HOSTILE}")
    PlainConsole(stderr=True).print(f"[bold]{HOSTILE}", style="red")


@pytest.mark.parametrize("command", [_prints, _fails, _breaks, _logs, _draws])
def test_no_command_writes_what_a_terminal_obeys(
    command: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(typer.Exit):
        exits_with_sentence(command)()
    assert (sys.stdout, sys.stderr) == before
    said = capsys.readouterr()
    assert is_plain(said.out + said.err)
    assert "a" in said.out + said.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_output_in_any_encoding_takes_everything(encoding: str) -> None:
    raw = io.BytesIO()
    stream = PlainOutput(io.TextIOWrapper(raw, encoding=encoding, errors="strict"))
    print(f"naïve {HOSTILE} 漢", file=stream)  # type: ignore[arg-type]
    stream.flush()
    assert raw.getvalue().decode(encoding).startswith("na")


def test_markup_and_emoji_codes_are_text() -> None:
    console = PlainConsole(file=io.StringIO(), width=200)
    console.print("[/nope] [link=https://example.org]here[/link] :skull:")
    assert "[/nope] [link=https://example.org]here[/link] :skull:" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_in_a_pipe_has_no_blanks_at_the_ends_of_lines() -> None:
    table = Table("name", "what", box=None, pad_edge=False)
    table.add_row("a", "short")
    table.add_row("b", "x" * 200)
    output = io.StringIO()
    PlainConsole(file=output, width=300).print(table)
    assert output.getvalue() == f"name  what\na     short\nb     {'x' * 200}\n"


def test_a_view_shows_events_of_others_in_one_plain_line() -> None:
    output = io.StringIO()
    event = Event(1.0, named(1), RefusedPeer(remote=named(2), reason=f"{HOSTILE}\nforged line"))
    PlainView(output).note(event.sentence())
    assert is_plain(output.getvalue())
    assert output.getvalue().count("\n") == 1


@pytest.mark.parametrize("num_fragments", [0, 1, 3, 40])
def test_a_record_of_another_shape_is_not_looked_at(num_fragments: int, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = RunManifest(name="tiny")
    shape = manifest.averaging.num_fragments
    good = Donor(fixed_network(), 10, World()).record()

    def shaped(number: int, count: int) -> PeerRecord:
        return replace(
            good, peer_id=named(number), versions=count * (1,), digests=count * (bytes(8),), lineage_tokens=count * (1,)
        )

    records = [shaped(1, shape), shaped(2, 0)]
    facts = status_facts(good.run_id, manifest, records, 0.0)
    assert facts["versions"] == shape * [1]
    hostile = [replace(record, name="[/nope]", device="[red]") for record in records]
    _print_table(good.run_id, manifest, hostile)
    assert "[/nope]" in capsys.readouterr().out
    assert RunObserver.has_shape(shaped(3, num_fragments), manifest) == (num_fragments in (0, shape))


def test_a_reader_that_has_left_is_noticed() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        assert not reader_has_left(stream)
        os.close(reader)
        assert reader_has_left(stream)
    assert not reader_has_left(io.StringIO())
