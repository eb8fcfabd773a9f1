"""Own training loops in real processes: the example, sessions that return, and what goes wrong in a loop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from averaging.rounds.round_facts import AppliedCommit, Fact, RoundCommitted
from dht.ground.errors import Incompatible, UsageFault
from dht.identity.keys import Identity
from peer.checkpoint.checkpoint import list_checkpoints, saved_totals
from peer.events.event_log import from_json
from peer.events.peer_events import Event, JoinedRun, LeftRun
from peer.join.run_connection import fitting_layout
from peer.join.session import join
from peer.owner.new_run import create_custom_run, create_run
from tests.kit.processes.process_swarm import UNHURRIED

EXAMPLES = Path(__file__).parents[3] / "examples"
F = TypeVar("F", bound=Fact)
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
WAIT_SECONDS = 240.0
STEP_SECONDS = 0.02
"""Fifty steps a second at most: at full speed each loop would keep a core busy while its test waits."""
QUICK = {"averaging": {"sync_every": 5, "num_fragments": 2}, "network": {"announce_seconds": 1.0}}


def small_module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


class Loop:
    """One process with an example, watched through its event log in `folder`, or below it.

    A step takes `step_seconds` longer than it must; with 0 the script runs as its reader runs it.
    """

    def __init__(
        self, folder: Path, *arguments: str, example: str = "own_loop", step_seconds: float = STEP_SECONDS
    ) -> None:
        self.folder = folder
        self.output = folder.with_suffix(".txt")
        unhurried = ["-m", UNHURRIED, str(step_seconds)] if step_seconds else []
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *unhurried, str(EXAMPLES / f"{example}.py"), "--folder", str(folder), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
                start_new_session=True,
            )

    def events(self) -> list[Event]:
        try:
            (log,) = self.folder.rglob("events.jsonl")
            lines = log.read_bytes().rpartition(b"\n")[0].splitlines()
        except (FileNotFoundError, ValueError):
            return []
        return [from_json(line.decode()) for line in lines]

    def wait_for(self, kind: type[F], matches: Callable[[F], bool] = lambda fact: True) -> F:
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            is_alive = self.process.poll() is None
            for event in self.events():
                if isinstance(event.fact, kind) and matches(event.fact):
                    return event.fact
            assert is_alive, self.output.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no such {kind.__name__} within {WAIT_SECONDS:.0f} s:\n{self.output.read_text()}")

    def join_line(self) -> list[str]:
        """What it tells others to give."""
        self.wait_for(JoinedRun)
        end = time.monotonic() + WAIT_SECONDS
        while "others join with: " not in self.output.read_text():
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.05)
        return self.output.read_text().partition("others join with: ")[2].splitlines()[0].split()

    def digests(self) -> dict[tuple[int, int], str]:
        return {
            (e.fact.fragment, e.fact.version): e.fact.digest for e in self.events() if isinstance(e.fact, AppliedCommit)
        }

    def children(self) -> list[int]:
        """Everything alive in its session: no descendant starts another one but the daemon, which has its own."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and os.path.exists(entry / "cmdline"):
                try:
                    command = (entry / "cmdline").read_bytes()
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] != "Z" and (int(fields[3]) == self.process.pid or str(self.folder).encode() in command):
                    found.append(int(entry.name))
        return found

    def end(self) -> int:
        try:
            return self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.output.read_text()}") from None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Loop]]:
    loops: list[Loop] = []

    def start_one(name: str, *arguments: str, **options: Any) -> Loop:
        loops.append(Loop(tmp_path / name, *arguments, **options))
        return loops[-1]

    yield start_one
    for loop in loops:
        if loop.process.poll() is None:
            loop.process.kill()
            loop.process.wait()


def losses_in(text: str) -> list[float]:
    return [float(line.partition("loss ")[2].partition(",")[0]) for line in text.splitlines() if "loss " in line]


def test_one_process_makes_a_run_and_trains_alone(start: Callable[..., Loop]) -> None:
    loop = start("alone", "--steps", "400", step_seconds=0)
    assert loop.end() == 0, loop.output.read_text()
    losses = losses_in(loop.output.read_text())
    assert len(losses) == 4
    assert losses[-1] < 0.5  # nats; guessing among four classes costs 1.39
    left = loop.wait_for(LeftRun)
    assert left.inner_steps == 400
    assert left.rounds_contributed == len([e for e in loop.events() if isinstance(e.fact, RoundCommitted)]) > 0
    assert loop.children() == []


def test_two_processes_train_together_and_end_with_equal_anchors(start: Callable[..., Loop]) -> None:
    """The last fragment is that of the buffers: statistics are averaged like parameters."""
    fragments = range(5)
    first = start("first", "--steps", "100000000", example="image_classifier")
    first.wait_for(AppliedCommit, lambda fact: fact.fragment == fragments[-1] and fact.version >= 10)
    second = start("second", "--steps", "100000000", *first.join_line(), example="image_classifier")
    second.wait_for(JoinedRun)
    ids = {Identity.load(loop.folder / "identity.key").peer_id for loop in (first, second)}
    for loop in (first, second):
        for fragment in fragments:
            loop.wait_for(
                RoundCommitted,
                lambda fact, wanted=fragment: fact.fragment == wanted and ids <= set(fact.contributors),  # type: ignore[misc]
            )
    # The last thing that a round does is to be applied by the loop.
    for fragment in fragments:
        second.wait_for(AppliedCommit, lambda fact, wanted=fragment: fact.fragment == wanted)  # type: ignore[misc]
    # An exception in the loop, as Ctrl+C is one, leaves in good order.
    second.process.send_signal(signal.SIGINT)
    assert second.end() != 0
    assert "KeyboardInterrupt" in second.output.read_text()
    left = second.wait_for(LeftRun)
    assert "KeyboardInterrupt" in left.reason
    assert second.children() == []
    # A newcomer's batch norm is right at once.
    on_joining, *_ = re.findall(r"validation loss of the anchor Evaluation\(loss=(\S+),", second.output.read_text())
    assert float(on_joining) < 1.0  # nats; guessing among ten figures costs 2.3
    mine = second.digests()
    last = {fragment: max(version for other, version in mine if other == fragment) for fragment, _ in mine}
    assert set(last) == set(fragments)
    for fragment, version in last.items():
        same = first.wait_for(
            AppliedCommit,
            lambda fact, key=(fragment, version): (fact.fragment, fact.version) == key,  # type: ignore[misc]
        )
        assert same.digest == mine[fragment, version]
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 128 + signal.SIGTERM
    left = first.wait_for(LeftRun)
    assert "SystemExit" in left.reason
    assert first.children() == []
    me, run_id = Identity.load(first.folder / "identity.key").peer_id, first.join_line()[1]
    assert saved_totals(first.folder / "checkpoints", run_id, me).inner_steps == left.inner_steps > 0


def test_a_trainer_that_is_ended_says_goodbye_and_keeps_its_state(start: Callable[..., Loop]) -> None:
    pytest.importorskip("transformers")
    loop = start("ended", "--steps", "100000000", example="trainer")
    loop.wait_for(AppliedCommit)
    loop.process.send_signal(signal.SIGTERM)
    assert loop.end() == 128 + signal.SIGTERM
    left = loop.wait_for(LeftRun)
    assert left.inner_steps > 0
    assert loop.children() == []
    me = Identity.load(loop.folder / "peer" / "identity.key").peer_id
    run_id = loop.join_line()[1]
    assert saved_totals(loop.folder / "peer" / "checkpoints", run_id, me).inner_steps == left.inner_steps


def test_a_lone_peer_that_returns_goes_on_where_it_was(tmp_path: Path) -> None:
    training = {"warmup_steps": 5, "schedule": {"kind": "cosine", "tokens": 10_000}}
    rates: list[tuple[float, int]] = []
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("a b c")
    run = create_custom_run("own", small_module(), {**QUICK, "training": training}, tmp_path, files=[vocabulary])
    inputs = torch.randn(100, 4)
    seen: list[Event] = []

    def train(num_commits: int) -> tuple[int, list[int]]:
        """Train until each fragment was committed so often in this session; returns inner steps and what was read."""
        module = small_module()
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        read: list[int] = []
        with join(
            run.run_id, module=module, optimizer=optimizer, data_dir=tmp_path, listen=(LOOPBACK,), on_event=seen.append
        ) as swarm:
            assert (swarm.files / "vocabulary.txt").read_text() == "a b c"
            enough = [version + num_commits for version in swarm.versions]
            swarm.scheduler(optimizer)
            for indices in swarm.samples(8, len(inputs)):
                rates.append((optimizer.param_groups[0]["lr"], swarm.tokens))
                read += [int(index) for index in indices]
                optimizer.zero_grad()
                loss = (module(inputs[indices]) - 1).square().mean()
                loss.backward()
                optimizer.step()
                if all(version >= wanted for version, wanted in zip(swarm.versions, enough, strict=True)):
                    break
            return swarm.inner_steps, read

    # A notebook's cell may run in another thread than the main one.
    results: list[tuple[int, list[int]]] = []
    thread = threading.Thread(target=lambda: results.append(train(3)))
    thread.start()
    thread.join(WAIT_SECONDS)
    assert len(results) == 1
    num_steps, read = results[0]
    me = Identity.load(tmp_path / "identity.key").peer_id
    totals = saved_totals(tmp_path / "checkpoints", run.run_id, me)
    assert (totals.inner_steps, totals.tokens) == (num_steps, 8 * num_steps)
    left = seen[-1].fact
    assert isinstance(left, LeftRun)
    assert left.rounds_contributed == totals.rounds_contributed >= 6
    applied = {event.fact.fragment: event.fact.version for event in seen if isinstance(event.fact, AppliedCommit)}
    assert [rate for rate, _ in rates[:2]] == pytest.approx([0.01 / 5, 0.02 / 5])
    rate, clock = rates[-1]
    assert rate < 0.01
    assert clock > 0
    assert optimizer_rates_fall(rates[5:])
    seen.clear()
    rates.clear()
    again, read_again = train(1)
    # No warm-up again, no step back: the rate is the run's from the first step on.
    assert rates[0][1] >= clock
    assert 0.01 * 0.1 < rates[0][0] <= rate
    assert optimizer_rates_fall(rates)
    assert again > num_steps
    assert read_again[:8] != read[:8]
    joined = next(event.fact for event in seen if isinstance(event.fact, JoinedRun))
    assert joined.versions == (applied[0], applied[1])
    assert saved_totals(tmp_path / "checkpoints", run.run_id, me).rounds_contributed > totals.rounds_contributed
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 2


def optimizer_rates_fall(rates: list[tuple[float, int]]) -> bool:
    """Whether neither a rate rises nor the run's clock goes back."""
    return all(later[0] <= earlier[0] and later[1] >= earlier[1] for earlier, later in pairwise(rates))


def test_an_exception_in_the_loop_is_the_one_that_is_seen(tmp_path: Path) -> None:
    module = small_module()
    run = create_custom_run("own", module, QUICK, tmp_path)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    seen: list[Event] = []
    swarm = join(
        run.run_id, module=module, optimizer=optimizer, data_dir=tmp_path, listen=(LOOPBACK,), on_event=seen.append
    )
    with pytest.raises(ZeroDivisionError), swarm:
        raise ZeroDivisionError
    assert [event for event in seen if isinstance(event.fact, LeftRun)]
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(UsageFault, match="already entered"), swarm:
        pass


def test_a_module_that_is_not_the_runs_never_trains(tmp_path: Path) -> None:
    run = create_custom_run("own", small_module(), QUICK, tmp_path)
    other = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with (
        pytest.raises(Incompatible, match="12 trained elements in 2 parameters; the run expects 49"),
        join(run.run_id, module=other, optimizer=optimizer, data_dir=tmp_path, listen=(LOOPBACK,)),
    ):
        pass


def test_the_built_in_model_is_not_custom(tmp_path: Path) -> None:
    manifest = create_run("gpt", None, tmp_path).manifest
    with pytest.raises(Incompatible, match="layout"):
        fitting_layout(manifest, [(f"p{index}", (10,)) for index in range(4)])
