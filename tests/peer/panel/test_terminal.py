"""What the person at the terminal sees and says: an output that is stuck holds up nothing, signals end politely."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
import typer

from dht.ground.errors import DeviceFault, Incompatible, LocalFault, NobodyReachable, UsageFault
from dht.ground.host import PeerId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.config.peer_config import PeerConfig
from peer.events.log_tail import last_events
from peer.events.peer_events import Event, LeftRun
from peer.panel.plain_and_json_views import PlainView
from peer.panel.terminal import MAX_WAITING, Terminal
from peer.panel.updates import LineLimits
from tests.kit.peer_events import joined
from tests.kit.terminals import StuckView, lost

RUN_ID = "own." + "a" * 20


def test_a_stuck_output_holds_up_neither_the_log_nor_whoever_tells(tmp_path: Path) -> None:
    view = StuckView()
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), view)
    count = MAX_WAITING + 100
    with terminal.interruptible():
        terminal.show(lost(0))
        assert view.stuck.wait(10)
        for number in range(1, count):
            terminal.show(lost(number))
        terminal.note("the last word")
        assert len(last_events(tmp_path / "events.jsonl", 2 * count)[0]) == count
        view.freed.set()
    # It caught up: the newest are shown, the oldest were let go.
    assert view.closed.is_set()
    assert view.shown[-1] == "the last word"
    assert view.shown[1:-1] == [lost(number) for number in range(count - MAX_WAITING + 1, count)]


def test_an_output_that_stays_stuck_does_not_keep_the_process(tmp_path: Path) -> None:
    view = StuckView()
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), view)
    with terminal.interruptible():
        terminal.show(lost(0))
        assert view.stuck.wait(10)
        terminal.show(Event(1.0, PeerId("me"), LeftRun(reason="done", inner_steps=1, tokens=1, rounds_contributed=0)))
    assert not view.closed.is_set()
    assert isinstance(last_events(tmp_path / "events.jsonl", 1)[0][0].fact, LeftRun)
    view.freed.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_insists(tmp_path: Path, number: signal.Signals) -> None:
    view = StuckView()
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), view)
    asked = []
    terminal.leave_by(lambda: asked.append(number))
    before = signal.getsignal(number)

    def insist() -> None:
        with terminal.interruptible():
            os.kill(os.getpid(), number)
            assert terminal.stop_asked()
            assert asked == [number]
            terminal.leave_by(lambda: asked.append(number))  # it comes late, and is called all the same
            assert asked == [number, number]
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        insist()
    assert signal.getsignal(number) == before
    assert any(isinstance(item, str) and "leaving" in item for item in view.shown)


def test_limits_that_are_changed_while_the_peer_loads_apply_as_soon_as_they_can(tmp_path: Path) -> None:
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), StuckView())
    applied: list[LineLimits] = []
    early, late = LineLimits(10.0, None), LineLimits(20.0, 40.0)
    terminal._act(early)
    terminal.limit_by(applied.append)
    assert applied == [early]
    terminal._act(late)
    assert applied == [early, late]


def test_what_nobody_waits_for_is_ended_by_the_first_signal(tmp_path: Path) -> None:
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), StuckView())
    done = []

    def tokenize() -> None:
        with terminal.leaving_at_once():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("a part")

    with terminal.interruptible():
        with pytest.raises(KeyboardInterrupt):
            tokenize()
        assert terminal.stop_asked()
        with pytest.raises(KeyboardInterrupt):
            tokenize()  # asked before it began
    assert not done


@pytest.mark.parametrize("is_member", [False, True])
def test_who_leaves_while_it_loads_reads_so_and_a_member_leaves_politely(tmp_path: Path, is_member: bool) -> None:
    view = StuckView()
    view.freed.set()
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), view)
    with terminal.interruptible():
        if is_member:
            terminal.show(joined(1.0))
        os.kill(os.getpid(), signal.SIGTERM)
    assert any("nothing is lost" in str(shown) for shown in view.shown) is not is_member
    assert not (is_member and terminal.left_early)


@pytest.mark.parametrize(
    ("what", "is_member", "told"),
    [
        ("peer join", False, "left before training began: nothing is lost"),
        ("peer seed", False, "left before any member was served: nothing is lost"),
        (
            "peer join",
            True,
            "left at once, without telling the others; work after the last checkpoint is not saved",
        ),
    ],
)
def test_who_leaves_at_once_reads_what_is_lost_and_no_word_of_an_interruption(
    what: str, is_member: bool, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = StuckView()
    view.freed.set()
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), view, what)

    @exits_with_sentence
    def leave() -> None:
        with terminal.interruptible(is_loading=True):
            if is_member:
                terminal.show(joined(1.0))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(typer.Exit) as ended:
        leave()
    assert ended.value.exit_code == 130
    assert view.shown[-1] == told
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [LocalFault, UsageFault, NobodyReachable, Incompatible, DeviceFault])
def test_nobody_is_asked_back_to_what_the_next_start_would_meet_again(tmp_path: Path, kind: type[LocalFault]) -> None:
    shown = io.StringIO()
    terminal = Terminal(PeerConfig(run_id=RUN_ID, data_dir=tmp_path), PlainView(shown))
    terminal.show(joined(1.0))
    with pytest.raises(kind), terminal.interruptible():
        raise kind("the owner of the run revoked this peer's key")
    assert "Thank you" in shown.getvalue()
    assert ("Come back" in shown.getvalue()) is (kind in (LocalFault, NobodyReachable))
