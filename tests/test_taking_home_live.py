"""Export, sample and evaluate with a run of real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.events import AppliedCommit
from tests.process_swarm import PeerProcess, ProcessSwarm, assert_one_sentence, process_swarm


@pytest.mark.network
def test_export_sample_and_evaluate_a_live_run(tmp_path: Path) -> None:
    with process_swarm() as swarm:
        first = swarm.start("first", has_record=True)
        first.wait_joined()
        second = swarm.start("second", peers=[first.address])
        second.wait_joined()
        first.wait_common_round(second.peer_id, after=first.mark())
        take_home(swarm, first, tmp_path)


def take_home(swarm: ProcessSwarm, first: PeerProcess, tmp_path: Path) -> None:
    here = ["--run-id", swarm.run_id, "--peers", first.address]
    out = tmp_path / "model.safetensors"
    exported = swarm.call("export", *here, "--out", str(out), "--json")
    assert exported.returncode == 0, exported.stderr
    facts = json.loads(exported.stdout)
    assert [fragment["num_confirmed"] for fragment in facts["fragments"]] == [2, 2]
    # The digests are those that the trainers said they had at these versions.
    applied = [event for event in first.events() if isinstance(event, AppliedCommit)]
    digests = {(event.fragment, event.version): event.digest for event in applied}
    for fragment in facts["fragments"]:
        said_then = digests[fragment["index"], fragment["version"]]
        assert len(said_then) >= 16
        assert fragment["digest"].startswith(said_then)
    assert json.loads((tmp_path / "config.json").read_text())["versions"] == facts["versions"]

    again = swarm.call("export", *here, "--out", str(out))
    assert again.returncode == 2
    assert_one_sentence(again.stderr, "is there already", "--force")

    said = [swarm.call("sample", "--model", str(out), "--prompt", "line 1", "--seed", "3") for _ in range(2)]
    assert said[0].returncode == 0, said[0].stderr
    assert said[0].stdout == said[1].stdout
    assert said[0].stdout.startswith("line 1")

    measured = swarm.call("evaluate", "--model", str(out), "--json")
    assert measured.returncode == 0, measured.stderr
    result = json.loads(measured.stdout)
    assert result["versions"] == facts["versions"]
    # Better than knowing nothing of the text: 8 bits per byte.
    assert 0 < result["bits_per_byte"] < 8
    live = swarm.call("evaluate", *here, "--json")
    assert live.returncode == 0, live.stderr
    assert min(json.loads(live.stdout)["versions"]) >= min(facts["versions"])
