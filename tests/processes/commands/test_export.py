"""Export, sample and evaluate with a run of real processes."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path

from averaging.rounds.round_facts import AppliedCommit
from tests.kit.processes.process_swarm import PeerProcess, ProcessSwarm, process_swarm

SLOW_SECONDS = 0.25
"""Of a step: the peers train while a dozen commands run beside them, and need no more than a few rounds."""


def test_export_sample_and_evaluate_a_live_run(tmp_path: Path) -> None:
    with process_swarm() as swarm:
        first = swarm.start("first", has_record=True, step_seconds=SLOW_SECONDS)
        first.wait_joined()
        second = swarm.start("second", peers=[first.address], step_seconds=SLOW_SECONDS)
        second.wait_joined()
        first.wait_common_round(second.peer_id, after=first.mark())
        take_home(swarm, first, tmp_path)
        # Its last checkpoint is that of its leave.
        second.process.send_signal(signal.SIGTERM)
        assert second.wait_end() == 0
        do_as_documented(swarm, first, swarm.folder_of("second"), tmp_path / "documented")


def do_as_documented(swarm: ProcessSwarm, first: PeerProcess, data_dir: Path, folder: Path) -> None:
    """The commands of the README's section in their order, and the program of the page that it names."""
    folder.mkdir()
    root = Path(__file__).resolve().parents[3]
    section = (root / "README.md").read_text().split("## Download the model")[1].split("\n## ")[0]
    (commands,) = re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    page = (root / "docs/organiser/take-home.md").read_text()
    program = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0]
    given = {"RUN": swarm.run_id, "ADDRESS": first.address, "DATA_DIR": str(data_dir)}
    said = []
    for line in commands.splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "peer"
        if arguments[0] == "evaluate":
            arguments += ["--data", f"text:{swarm.text}"]  # of this run each volunteer brings the text
        done = swarm.call(*(given.get(argument, argument) for argument in arguments), folder=folder)
        assert done.returncode == 0, line
        # Of a checkpoint it says how old it is. This one is that of a goodbye, so nobody has a newer one.
        age = r"The checkpoint was saved .* ago, with .* tokens committed\.\n" if "--checkpoint" in arguments else ""
        assert re.fullmatch(age, done.stderr), line
        said.append(done.stdout)
    assert {path.name for path in folder.iterdir()} == {"model", "mine"}
    assert any(text.startswith("def main") for text in said)
    # What transformers says on standard error is its own.
    quiet = "import transformers\ntransformers.logging.disable_progress_bar()\n"
    ran = swarm.call_python("-c", quiet + program + "print(tuple(model(**inputs).logits.shape))", folder=folder)
    assert ran.returncode == 0, ran.stderr
    # transformers says that 100 tokens are more than this tiny run's context.
    assert all(line.startswith("[transformers] ") for line in ran.stderr.splitlines()), ran.stderr
    assert ran.stdout.startswith("def main")
    assert ran.stdout.endswith("\n(1, 8, 256)\n")


def take_home(swarm: ProcessSwarm, first: PeerProcess, tmp_path: Path) -> None:
    here = ["--run-id", swarm.run_id, "--peers", first.address]
    out = tmp_path / "model"
    exported = swarm.call("export", *here, "--out", str(out), "--json")
    assert exported.returncode == 0, exported.stderr
    facts = json.loads(exported.stdout)
    assert [fragment["num_confirmed"] for fragment in facts["fragments"]] == [2, 2]
    # The digests are those that the trainers said they had at these versions.
    applied = [event.fact for event in first.events() if isinstance(event.fact, AppliedCommit)]
    digests = {(fact.fragment, fact.version): fact.digest for fact in applied}
    for fragment in facts["fragments"]:
        said_then = digests[fragment["index"], fragment["version"]]
        assert len(said_then) >= 16
        assert fragment["digest"].startswith(said_then)
    assert json.loads((out / "run.json").read_text())["versions"] == facts["versions"]

    live = swarm.call("evaluate", *here, "--data", f"text:{swarm.text}", "--json")
    assert live.returncode == 0, live.stderr
    result = json.loads(live.stdout)
    assert min(result["versions"]) >= min(facts["versions"])
    # Better than knowing nothing of the text: 8 bits per byte.
    assert 0 < result["bits_per_byte"] < 8
