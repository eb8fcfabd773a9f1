"""Scenarios: what their files may say, what becomes of them, and that the trace hash holds no values of tensors."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from averaging.codec import compiled_kernels
from averaging.rounds.round_facts import RoundCommitted
from dht.ground.errors import UsageFault
from peer.events.anchor_events import Fetched
from peer.events.peer_events import Event, JoinedRun, LeftRun
from tests.simulator import __main__ as command
from tests.simulator import workload as simulated_workload
from tests.simulator.scenarios.scenario import (
    SHIPPED,
    Scenario,
    WorkloadSection,
    list_scenarios,
    load_scenario,
)
from tests.simulator.scenarios.schedule import spec_of
from tests.simulator.simulation import simulate
from tests.simulator.trace import Trace
from tests.simulator.workload import QuadraticWorkload

DOCUMENT = Path(__file__).parents[2] / "docs" / "developer" / "simulation.md"

SMALL = {
    "duration_minutes": 1.5,
    "settle_minutes": 2,
    "workload": {"num_values": 2048},
    "averaging": {"sync_every": 10, "num_fragments": 2},
    "groups": {"all": {"count": 4, "step_seconds": [0.4, 0.9]}},
}


def scenario(**changes):
    return Scenario.model_validate({**SMALL, **changes})


def run(seed=1, on_event=lambda index, event: None, **changes):
    return simulate(spec_of(scenario(**changes), seed), on_event)


# --- files ---

MINIMAL = "[groups.all]\ncount = 2\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed = 1\n", "groups is missing"),
        ("[groups.a]\ncount = 0\n", "groups.a.count is 0; expected a whole number from 1 to 4096"),
        (
            "[groups.a]\ncount = 2\ncrashes_per_hours = 3\n",
            "is not a field in groups.a; did you mean crashes_per_hour?",
        ),
        (MINIMAL + "step_seconds = [3, 1]\n", "groups.all.step_seconds: got [3, 1]; expected from 0.001 to 3600"),
        (MINIMAL + "step_seconds = 1\ntokens_per_second = 9\n", "groups.all: step_seconds and tokens_per_second are"),
        (MINIMAL + "joins_at_minute = [0, 5]\nleaves_at_minute = 4\n", "expected peers to join before they leave"),
        (
            MINIMAL + "lie = 'white'\n",
            "groups.all.lie is 'white'; expected one of sign_flipped, scaled, random, constant, nan, inf",
        ),
        (MINIMAL + "[averaging]\nsync_evry = 3\n", "sync_evry is not a field in averaging; did you mean sync_every?"),
        (
            MINIMAL + "[partitions.p]\ngroups = ['b']\nfrom_minute = 1\nto_minute = 2\n",
            "partitions.p.groups names 'b'; expected one of all",
        ),
        (
            MINIMAL
            + "[partitions.p]\ngroups = ['all']\nfrom_minute = 1\nto_minute = 5\n"
            + "[partitions.q]\ngroups = ['all']\nfrom_minute = 4\nto_minute = 6\n",
            "partitions.q.from_minute is 4 while partitions.p lasts until 5; expected one partition at a time",
        ),
        (
            "[groups.a]\ncount = 4000\n[groups.b]\ncount = 97\n",
            "groups have 4097 peers together; expected at most 4096",
        ),
        ("count = \n", "is not a TOML file"),
    ],
)
def test_a_wrong_file_costs_one_sentence_with_file_and_field(tmp_path, text, sentence):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UsageFault) as raised:
        load_scenario(str(path))
    assert str(path) in str(raised.value)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_shipped_scenarios_are_listed_and_found_by_name(capsys):
    assert list_scenarios(as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert tuple(told) == SHIPPED
    assert all(told.values())
    assert list_scenarios(as_json=False) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SHIPPED)
    with pytest.raises(UsageFault, match="Did you mean storm"):
        load_scenario("strom")


def test_the_example_of_the_documentation_is_a_scenario(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "example.toml"
    path.write_text(text)
    assert load_scenario(str(path)).num_peers == 11


# --- from a scenario to a simulation ---


def test_each_peer_keeps_its_life_when_another_group_grows():
    groups = {"a": {"count": 3, "crashes_per_hour": 50, "returns_after_minutes": [0.1, 0.3]}, "b": {"count": 2}}
    spec = spec_of(scenario(groups=groups), 5)
    assert spec == spec_of(scenario(groups=groups), 5)
    assert spec != spec_of(scenario(groups=groups), 6)
    groups["b"]["count"] = 9
    grown = spec_of(scenario(groups=groups), 5)
    assert grown.profiles[:5] == spec.profiles
    assert [f for f in grown.faults if f.peers[0] < 3] == [f for f in spec.faults if f.peers[0] < 3]


def test_lives_follow_their_schedule():
    groups = {
        "stormy": {"count": 400, "crashes_per_hour": 0.3},
        "evening": {"count": 5, "online_minutes": [3, 5], "offline_minutes": 1, "leaves_at_minute": [50, 55]},
        "returning": {"count": 20, "crashes_per_hour": 6, "returns_after_minutes": [1, 2]},
        "liars": {"count": 1, "lie": "nan"},
    }
    faults = spec_of(scenario(duration_minutes=60, groups=groups), 3).faults
    assert all(0 <= fault.at_seconds < 3600 for fault in faults)
    assert sorted(faults, key=lambda fault: fault.at_seconds) == list(faults)
    kinds = [Counter(fault.kind for fault in faults if fault.peers[0] in peers) for peers in (range(400), range(1))]
    assert kinds[0]["start"] == 400
    assert 0.2 * 400 < kinds[0]["crash"] < 0.33 * 400  # 1 - exp(-0.3) of all
    for peer in range(400, 425):
        own = [fault for fault in faults if fault.peers[0] == peer]
        assert [fault.kind == "start" for fault in own] == [number % 2 == 0 for number in range(len(own))]
        gaps = [later.at_seconds - earlier.at_seconds for earlier, later in zip(own[1::2], own[2::2], strict=False)]
        assert all((59 < gap < 61) if peer < 405 else (60 <= gap <= 121) for gap in gaps)
    assert [fault.kind for fault in faults if fault.peers[0] == 425] == ["start", "crash"]


# --- the hash ---


def a_little_off(begin):
    """Work with every live parameter rounded otherwise in each inner step."""

    def begun(*args):
        work = begin(*args)

        def step():
            for values in work.parameters.values():
                values *= 1 + 2**-20
            work.step()

        return dataclasses.replace(work, step=step)

    return begun


@pytest.mark.parametrize("workload", [{"num_values": 4096}, {"kind": "gpt"}], ids=["quadratic", "gpt"])
def test_the_hash_holds_no_values_of_tensors(monkeypatch, workload):
    """As on another processor: all floats a little different, all decisions the same."""
    changes = {"workload": workload, "duration_minutes": 0.3, "groups": {"all": {**SMALL["groups"]["all"], "count": 2}}}
    first = run(**changes)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads % 4 + 1)
    try:
        assert run(**changes) == dataclasses.replace(first, real_seconds=pytest.approx(first.real_seconds, rel=1e9))
    finally:
        torch.set_num_threads(num_threads)
    monkeypatch.setattr(compiled_kernels, "kernels", lambda: None)
    for kind in (simulated_workload.GptWorkload, simulated_workload.QuadraticWorkload):
        monkeypatch.setattr(kind, "begin", a_little_off(kind.begin))
    other = run(**changes)
    assert other.loss_last != first.loss_last
    assert other.trace_hash == first.trace_hash


def test_the_hash_notices_time_and_faults():
    first, second = (run(seed, duration_minutes=0.5).trace_hash for seed in (1, 2))
    assert first != second
    stall = {"s": {"groups": ["all"], "num_peers": 1, "from_minute": 0.2, "to_minute": 0.4}}
    assert run(1, stalls=stall, duration_minutes=0.5).trace_hash != first


def test_each_event_has_its_own_line_in_the_hash():
    fact = Fetched(8, 1.0, ("b",), (0,))
    hashes = set()
    for event in (Event(1.0, "a", fact), Event(1.0, "a", replace(fact, num_bytes=9)), Event(2.0, "a", fact)):
        trace = Trace(["all"])
        trace.add(0, event)
        hashes.add(trace.hash)
    trace.add(0, Event(1.0, "a", fact))
    assert len(hashes | {trace.hash}) == 4


def test_a_commit_of_a_further_key_of_a_hostile_host_is_a_round_that_no_peer_was_in():
    trace = Trace(["all"])
    trace.meet(0, "a")
    trace.add(0, Event(1.0, "a", RoundCommitted(0, 0, ("one of its keys",), 0.3, 10, 0, 0.0, 0, 0, 0, 0)))
    assert trace.rounds_committed == 1
    assert trace.share_of_rounds("all") == 0.0


def test_the_quadratic_is_learned():
    spec = spec_of(scenario(workload={"num_values": 1000}), 1)
    workload = QuadraticWorkload(
        spec.manifest, WorkloadSection(num_values=1000, tokens_per_step=10, learning_rate=0.1, noise=0.0)
    )
    anchors = {index: np.zeros(size, dtype=np.float32) for index, size in enumerate(workload.layout.sizes)}
    assert workload.loss(anchors) == workload.loss(None) == pytest.approx((1 + 1 / 4 + 1 / 16 + 1 / 64) / 8)
    result = run(groups={"all": {"count": 2, "step_seconds": [0.4, 0.9]}})
    assert result.violations == ()
    assert result.loss_last < 0.5 * result.loss_first
    assert [point.hours for point in result.losses] == sorted(point.hours for point in result.losses)
    assert result.losses[-1].loss < result.losses[0].loss


# --- the network ---


def test_a_round_takes_as_long_as_its_bytes_need_on_the_line():
    """Two peers, 262144 values per round at 4 bits: each sends half as contribution, then half as result.

    With one fragment, because rounds of two share the line where they meet, which is a matter of their first steps.
    """
    medians = {}
    for rate in (2, 20):
        group = {"count": 2, "step_seconds": 1, "upload_mbit_per_second": rate, "latency_ms": 1}
        averaging = {"num_fragments": 1}
        result = run(groups={"all": group}, workload={"num_values": 2**18}, averaging=averaging, duration_minutes=2)
        assert result.violations == ()
        medians[rate] = result.round_seconds.median
        least = 8 * (2**18 / 2) / (1e6 * rate)
        assert least < medians[rate] < 1.5 * least + 0.2
    assert medians[2] > 5 * medians[20]


def test_bytes_between_sites_are_counted_apart():
    groups = {"north": {"count": 2, "site": "north"}, "south": {"count": 2, "site": "south"}}
    apart = run(groups=groups, duration_minutes=0.7)
    for group in apart.groups:
        assert 0.3 * group.bytes_up < group.bytes_abroad < group.bytes_up
        assert group.share_of_rounds > 0.5
        assert group.num_started == group.num_peers == 2
    groups["south"]["site"] = "north"
    assert all(group.bytes_abroad == 0 for group in run(groups=groups, duration_minutes=0.7).groups)


# --- who comes and goes, who lies ---


def test_peers_say_goodbye_and_come_back():
    events = []
    groups = {"all": {"count": 3}, "evening": {"count": 1, "online_minutes": 0.5, "offline_minutes": 0.01}}
    result = run(
        on_event=lambda index, event: events.append((index, type(event.fact))), groups=groups, duration_minutes=2
    )
    assert result.violations == ()
    assert events.count((3, LeftRun)) >= 2
    assert events.count((3, JoinedRun)) > events.count((3, LeftRun)) - 1
    assert events.count((0, LeftRun)) == 0
    assert result.goodput > 0.9


# --- the command ---


TINY_FILE = """
duration_minutes = 0.5
seed = 9
[workload]
num_values = 256
[averaging]
sync_every = 8
num_fragments = 1
[groups.all]
count = 2
"""


def test_the_command_runs_a_file(tmp_path, capsys, monkeypatch):
    path = tmp_path / "own.toml"
    path.write_text(TINY_FILE)
    assert command.main([str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["seed"] == 9
    assert shown["groups"][0]["name"] == "all"
    assert set(shown) >= {"goodput", "staleness", "losses", "refusals", "round_seconds", "trace_hash", "violations"}
    assert command.main([str(path), "--seed", "3"]) == 0
    summary = capsys.readouterr()
    assert "seed 3" in summary.out
    assert "every invariant held" in summary.out
    assert summary.err == ""
    broken = dataclasses.replace(simulate(spec_of(load_scenario(str(path)), 9)), violations=("two anchors differ",))
    monkeypatch.setattr(command, "simulate", lambda spec, on_progress: broken)
    assert command.main([str(path)]) == 1
    assert "two anchors differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["home", "--peers", "3"], "--peers, --steps and --churn are given beside a scenario"),
        (["hom"], "'hom' is not a scenario; expected home, datacenters, storm, laptops"),
        (["there-is-no.toml"], "there-is-no.toml cannot be read"),
    ],
)
def test_a_mistake_ends_with_code_2(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
