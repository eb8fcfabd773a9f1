"""Three terminals on one machine: the lines that are printed, typed as anybody would, in one home folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from averaging.rounds.round_facts import RoundCommitted
from dht.ground.host import PeerId
from dht.identity.keys import Identity
from peer.events.log_tail import events_in, tail_lines
from tests.kit.processes.process_swarm import (
    STEP_SECONDS,
    TINY_RUN,
    UNHURRIED,
    WAIT_SECONDS,
    ProcessSwarm,
    process_swarm,
    wait_until,
)

RUN = TINY_RUN.replace('source = "text:"\n', "")
"""On the text that every machine has, so that no line needs a path."""


class Typed:
    """A `peer ...` line, typed in a terminal of its own; its output goes to a file."""

    def __init__(self, swarm: ProcessSwarm, line: str) -> None:
        command, *arguments = shlex.split(line)
        assert Path(command).name == "peer"
        program = [UNHURRIED, str(STEP_SECONDS)] if arguments[0] == "join" else ["peer"]
        self._output = swarm.folder / f"terminal-{len(list(swarm.folder.glob('terminal-*')))}"
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=swarm.folder,
                env=swarm.environment,
                start_new_session=True,
            )

    def leave(self) -> int:
        """Ctrl+C, as a service manager does it; returns the exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_SECONDS)

    @property
    def shown(self) -> str:
        assert self.process.poll() is None, self._output.read_text()
        return self._output.read_text()


def printed(title: str, text: str) -> str:
    found = re.search(rf"^{title}:? +(.+)$", text, re.MULTILINE)
    assert found, text
    return found[1]


def key_in(folder: Path) -> PeerId:
    return Identity.load(folder / "identity.key").peer_id


def have_met(folder: Path, *others: Path) -> bool:
    """Whether one round that this folder's peer saw holds the work of all of them."""
    wanted = {key_in(one) for one in (folder, *others)}
    events = events_in(tail_lines(folder / "events.jsonl"))
    return any(isinstance(event.fact, RoundCommitted) and wanted <= set(event.fact.contributors) for event in events)


def test_the_printed_lines_make_a_swarm_on_one_machine() -> None:
    with process_swarm(RUN) as swarm:
        made = swarm.call("init", "small", "--config", "run.toml", folder=swarm.folder)
        run_id = printed("Run id", made.stdout)
        seed = Typed(swarm, printed("Start it", made.stdout))
        wait_until(lambda: re.search(r"/ip4/\S+/p2p/\w+", seed.shown) is not None, "the seed says where it is")
        address = re.search(r"/ip4/\S+/p2p/\w+", seed.shown)
        assert address is not None
        # The second has just what is printed; the third forgets the address, which the first one's folder has.
        _, _, host, _, port, _, peer_id = address[0].split("/")
        place = f"{host}:{port}/{peer_id}"
        link = printed("Join it", made.stdout).replace("HOST:PORT/PEERID", place)
        second = Typed(swarm, link)
        third = Typed(swarm, f"peer join --run-id {run_id}")
        first_folder = Path(swarm.environment["XDG_DATA_HOME"]) / "murmuration" / run_id
        folders = [first_folder.with_name(f"{run_id}-{number}") for number in (2, 3)]
        logs = [folder / "events.jsonl" for folder in folders]
        wait_until(lambda: all(log.exists() for log in logs) and have_met(*folders), "a round of both")
        said = second.shown + third.shown
        for folder in folders:
            assert f"his machine already runs the run's seed; this peer uses its own folder, {folder}" in said
        assert len({key_in(folder) for folder in (first_folder, *folders)}) == 3
        # A fourth terminal looks, with nothing but the run.
        status = swarm.call("status", "--run-id", run_id, "--json")
        assert status.returncode == 0, status.stderr
        assert all(key_in(folder) in status.stdout for folder in (first_folder, *folders))
        assert all(typed.shown for typed in (seed, second, third))
        assert [typed.leave() for typed in (third, second, seed)] == [0, 0, 0]
        # One waits at the address of the link; the seed comes back on another port of this machine.
        waiting = Typed(swarm, link)
        wait_until(lambda: f"no member answers at {address[0]}" in waiting.shown, "it says that nobody answers there")
        seed = Typed(swarm, printed("Start it", made.stdout))
        wait_until(lambda: f"Joined {run_id}" in waiting.shown, "it finds the seed")
        assert address[0] not in seed.shown
        assert [typed.leave() for typed in (waiting, seed)] == [0, 0]
