"""What `peer plan` says: traffic against formulas and simulated swarms, settings against plans, reports, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from averaging.codec.blocks import CODE_BITS, encoded_num_bytes
from averaging.codec.codec import make_codec
from averaging.outer.fragment_layout import build_layout
from averaging.rounds.round_facts import RoundCommitted
from dht.ground.quantities import count_text
from dht.ground.store import NUM_HOLDERS_READ
from dht.kademlia.dht_node import NUM_REPLICAS
from peer.cli.app import run
from peer.config.averaging_rules import BLOCK_SIZE
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.manifest import RunManifest
from peer.config.model_shapes import seed_sizes
from peer.config.training_section import TrainingSection
from peer.mailbox.mailbox import mailbox_num_bytes
from peer.owner.new_run import create_run
from peer.plan import report
from peer.plan.plan_source import plan_of
from peer.plan.planning import GOAL_TOKENS, LINE, NUM_HOMES, RECORD_HOLDERS, RECORD_READS, plan_run
from peer.plan.round_seconds import LINE_SHARE, MemberLink, round_seconds, round_traffic
from peer.trainer.model.gpt import build_model
from peer.trainer.model.inner_optimizer import make_optimizer
from tests.kit.documents import section
from tests.simulator.network.lines import LineSettings
from tests.simulator.scenarios.spec import Fault, PeerSpec, SimulationSpec, WorkloadSection, tiny_manifest
from tests.simulator.simulation import simulate

INT4 = make_codec("int4", 128)
MILLION = 1 << 20


def sizes_of(num_fragments=4):
    return build_layout([("all", (MILLION,))], num_fragments, "balanced").sizes


def manifest_of(**averaging):
    return RunManifest.from_fields({"name": "planned", "averaging": averaging})


# --- traffic ---


@given(
    st.integers(1, 300_000),
    st.lists(st.tuples(st.floats(1e5, 1e9), st.booleans()), min_size=1, max_size=12),
    st.sampled_from(sorted(CODE_BITS)),
)
@settings(max_examples=60)
def test_what_is_sent_is_received(num_values, members, codec):
    lines = [MemberLink(rate, 1e9, reachable=ok) for rate, ok in members]
    traffic = round_traffic(num_values, make_codec(codec, 128), lines)
    assert sum(part.contribution_bytes_up for part in traffic) == sum(part.contribution_bytes_down for part in traffic)
    assert sum(part.result_bytes_up for part in traffic) == sum(part.result_bytes_down for part in traffic)
    assert sum(part.control_bytes_up for part in traffic) == pytest.approx(
        sum(part.control_bytes_down for part in traffic)
    )
    assert sum(num_values - part.values for part in traffic) == num_values


def test_a_lone_peer_and_an_unreachable_one():
    (alone,) = round_traffic(MILLION, INT4, [MemberLink(1e7, 1e8)])
    assert alone.bytes_up == alone.bytes_down == 0
    assert round_seconds([alone], [MemberLink(1e7, 1e8, 1.0)]) == 0
    hidden, open_ = round_traffic(MILLION, INT4, [MemberLink(1e9, 1e9, reachable=False), MemberLink(1e6, 1e9)])
    assert hidden.values == MILLION
    assert hidden.result_bytes_up == 0
    assert open_.values == 0


def test_a_tiny_first_fragment_does_not_stand_for_the_others():
    plan = plan_run(manifest_of(num_fragments=4), (48, 12_000, 27_000, 27_000))
    assert 4 < plan.contribution_bits_per_parameter < 6
    assert 4 < plan.result_bits_per_parameter < 6


def test_seconds_are_those_of_the_slowest_line():
    lines = [MemberLink(1e6, 1e9), MemberLink(1e6, 1e9)]
    traffic = round_traffic(MILLION, INT4, lines)
    payload_bits = 8 * encoded_num_bytes("int4", 128, MILLION) / 2
    assert round_seconds(traffic, lines) == pytest.approx(2 * payload_bits / LINE_SHARE / 1e6, rel=0.01)
    late = [MemberLink(1e6, 1e9, 0.2), MemberLink(1e6, 1e9)]
    assert round_seconds(traffic, late) == pytest.approx(round_seconds(traffic, lines) + 5 * 0.2)
    throttled = [MemberLink(1e6, 1e5), MemberLink(1e6, 1e9)]
    assert round_seconds(traffic, throttled) == pytest.approx(2 * payload_bits / LINE_SHARE / 1e5, rel=0.01)


def test_simulated_peers_send_what_was_counted():
    """Real exchanges: rounds of four peers, to some bytes of headers and the control messages of who leads."""
    num_peers, num_values, rate, latency_seconds = 4, 1 << 18, 8e6, 0.02
    manifest = tiny_manifest(3, sync_every=8, num_fragments=2, codec="int4")
    lines = [LineSettings(rate, rate, latency_seconds / 2, 0.0, f"s{index}") for index in range(num_peers)]
    peers = tuple(PeerSpec("all", line, 2.0) for line in lines)
    rounds, whole = {}, []

    def note(index, event):
        if isinstance(event.fact, RoundCommitted):
            rounds[(event.fact.fragment, event.fact.version)] = len(event.fact.contributors)
            if len(event.fact.contributors) == num_peers and event.fact.contribution_values_sent:
                whole.append((index, event))

    spec = SimulationSpec(
        num_peers,
        32,
        3,
        manifest,
        (Fault(0.1, "start", tuple(range(num_peers))),),
        profiles=peers,
        workload=WorkloadSection(num_values=num_values, tokens_per_step=64, learning_rate=0.1, noise=0.1),
        duration_seconds=64.0,
    )
    result = simulate(spec, note)
    assert result.violations == ()
    lines = [MemberLink(rate, rate, latency_seconds)] * num_peers
    expected = round_traffic(num_values // 2, INT4, lines, seconds=1.0)
    assert len(whole) >= 12
    for index, event in whole:
        part = expected[index]
        assert event.fact.contribution_values_sent == part.values
        # Numbers of a young run take some bytes less in headers; an event's bytes include its offer and reports, and
        # those of a leader what it sends each second to members that wait for a newcomer.
        assert -60 < event.fact.bytes_up - part.contribution_bytes_up < 400
        if event.fact.result_values_received == part.values:
            assert -60 < event.fact.bytes_down - part.result_bytes_down < 4000
    # Who was not in a round asks for all of its result.
    payload_bytes = INT4.encoded_num_bytes(num_values // 2)
    in_all = sum(
        sum(part.bytes_up for part in round_traffic(num_values // 2, INT4, lines[:size], seconds=1.0))
        + (num_peers - size) * payload_bytes
        for size in rounds.values()
    )
    # Beside rounds, peers greet each other and compare digests.
    assert sum(result.bytes_up) == pytest.approx(in_all, rel=0.05)
    # An event counts from its peer's offer, the count from the last one.
    fastest = min(event.fact.seconds for _, event in whole)
    assert fastest < 1.5 * round_seconds(expected, lines) < 2 * median(event.fact.seconds for _, event in whole)


# --- plans ---


def test_a_plan_by_hand():
    """One fragment of 2^20 values, four homes, H 10: 10 s for three quarters of a contribution and of a mean."""
    manifest = manifest_of(sync_every=10, num_fragments=1)
    plan = plan_run(manifest, sizes_of(1))
    home = plan.home
    part = round_traffic(MILLION, INT4, [LINE] * NUM_HOMES, seconds=plan.round_seconds)[0]
    payload_bits = 8 * encoded_num_bytes("int4", 128, MILLION)
    assert plan.interval_seconds == 10.0
    assert home.needed_upload_bits_per_second == pytest.approx(1.5 * payload_bits / LINE_SHARE / 10, rel=0.02)
    assert home.upload_share == pytest.approx(home.needed_upload_bits_per_second / 20e6)
    assert home.upload_bytes_per_hour == pytest.approx(360 * part.bytes_up / LINE_SHARE)
    assert (home.utilisation, home.in_time) == (1.0, 1.0)
    assert plan.tokens_per_second == pytest.approx(NUM_HOMES * manifest.step_tokens)
    assert (plan.goal_tokens, plan.goal_seconds) == (GOAL_TOKENS, pytest.approx(GOAL_TOKENS / plan.tokens_per_second))
    assert plan.join_bytes == 8 * MILLION
    assert plan.warnings == ()


def test_a_plan_goes_by_the_runs_own_budget():
    manifest = manifest_of()
    schedule = ScheduleSection(kind="cosine", tokens=5 * 10**6)
    manifest = manifest.model_copy(update={"training": manifest.training.model_copy(update={"schedule": schedule})})
    assert plan_run(manifest, sizes_of()).goal_tokens == 5 * 10**6


def test_a_model_that_is_too_large_for_a_usual_line_is_told_and_slows_the_rounds():
    plan = plan_run(manifest_of(sync_every=1, num_fragments=1, round_deadline_seconds=2.0), (100 * MILLION,))
    assert plan.home.upload_share > 1
    assert plan.home.in_time < 1
    assert plan.interval_seconds > 1.0
    assert plan.home.upload_bytes_per_hour <= 20e6 / 8 * 3600 * 1.001
    assert "the upload of a usual home (20 Mbit/s) is" in plan.warnings[0]
    assert "round_deadline_seconds" in plan.warnings[-1]


def test_only_lock_step_waits():
    computing = {
        mode: plan_run(manifest_of(mode=mode, sync_every=1), sizes_of()).home for mode in ("sync", "streaming", "carry")
    }
    assert computing["sync"].utilisation < 0.95
    assert computing["sync"].in_time == 1.0
    assert computing["streaming"].utilisation == computing["carry"].utilisation == 1.0


def test_more_bits_need_a_faster_line():
    int4, fp32 = (plan_run(manifest_of(codec=codec), sizes_of()).home.upload_share for codec in ("int4", "fp32"))
    assert fp32 / int4 == pytest.approx(32 / 4.125, rel=0.02)


def test_memory_counts_what_the_code_keeps():
    plan = plan_run(manifest_of(num_fragments=4), sizes_of())
    memory = plan.home.network_memory
    section = manifest_of(num_fragments=4).averaging
    sent = [encoded_num_bytes(section.codec, BLOCK_SIZE, size) for size in sizes_of(4)]
    assert memory.mailbox_bytes == mailbox_num_bytes(sizes_of(4), sent)
    assert memory.velocity_bytes == 0
    assert plan_run(manifest_of(mode="eager"), sizes_of()).home.network_memory.velocity_bytes == (4 * MILLION)
    trainer = plan.home.trainer_memory
    assert trainer.total_bytes - trainer.libraries_bytes - trainer.checkpoint_bytes == 20 * MILLION
    # Two of four fragments with their momentum for newcomers.
    assert memory.copies_bytes == 4 * MILLION
    assert plan.disk_bytes > 3 * 28 * MILLION


def test_muon_keeps_one_velocity_where_adamw_has_two_moments():
    """As the optimizers themselves have it, after a step."""
    plans, kept = {}, {}
    for name in ("adamw", "muon"):
        manifest = RunManifest(name="r", training=TrainingSection(optimizer=name))
        plans[name] = plan_of(manifest)
        model = build_model(manifest.model, 0)
        optimizer = make_optimizer(model.named_parameters(), manifest.training)
        model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)).backward()
        optimizer.step()
        states = optimizer.state_dict()["state"].values()
        kept[name] = sum(v.nbytes for state in states for v in state.values() if torch.is_tensor(v) and v.dim())
    homes_of = {name: plan.home.trainer_memory for name, plan in plans.items()}
    assert {name: home.optimizer_bytes for name, home in homes_of.items()} == kept
    saved = kept["adamw"] - kept["muon"]
    assert saved > 0.4 * kept["adamw"]
    assert homes_of["adamw"].checkpoint_bytes - homes_of["muon"].checkpoint_bytes == saved
    assert plans["adamw"].disk_bytes - plans["muon"].disk_bytes == 3 * saved


def test_numbers_of_other_modules_are_still_theirs():
    assert (RECORD_HOLDERS, RECORD_READS) == (NUM_REPLICAS, NUM_HOLDERS_READ)


# --- the command ---


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_run_files_manifests_and_run_records_are_read(tmp_path, capsys):
    plain = write(tmp_path, "run.toml", "[averaging]\nnum_fragments = 2\n")
    made = create_run("tiny", plain, tmp_path / "run")
    as_json = write(tmp_path, "manifest.json", made.manifest.to_bytes().decode())
    names = []
    for path in (plain, as_json, str(made.run_record_path), str(made.folder)):
        assert run(["plan", path, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        names.append(told["run"])
        assert len(told["fragment_sizes"]) == 2
    assert names == ["unnamed", "tiny", "tiny", "tiny"]


def test_people_are_told_the_same(tmp_path, capsys):
    path = write(tmp_path, "run.toml", 'name = "tiny"\n')
    assert run(["plan", path, "--full"]) == 0
    told = capsys.readouterr().out
    plan = plan_of(RunManifest(name="tiny"))
    assert "tiny" in told
    assert f"{plan.home.needed_upload_bits_per_second / 1e6:.3g}" in told
    assert "Without activations" in " ".join(told.split())


@pytest.mark.parametrize(("sync_every", "shown"), [(1, "5.4"), (30, "0.18"), (10_000, "0.00054")])
def test_a_home_reads_its_rate_without_powers_of_ten(sync_every, shown):
    manifest = RunManifest(name="tiny", averaging={"sync_every": sync_every})
    plan = plan_of(manifest)
    traffic = report.lines_for_a_home(plan)[0]
    assert f" {shown} Mbit/s up and {shown} Mbit/s down are enough" in traffic
    assert "1.00 G tokens in" in report.lines_for_a_home(plan)[-2]
    assert report.lines_for_a_home(plan)[-1].startswith("Estimated for machines that take 1 s per step;")
    huge = replace(plan.home, needed_upload_bits_per_second=1.4534e8)
    assert " 150 Mbit/s up" in report.lines_for_a_home(replace(plan, home=huge))[0]


VOLUNTEERS = (Path(__file__).parents[3] / "docs" / "volunteer" / "faq.md").read_text(encoding="utf-8")
RUNS_IN_THE_DOCUMENT = (
    {"num_layers": 4, "d_model": 128},
    {"num_layers": 6, "d_model": 512, "num_heads": 8},
    {"num_layers": 12, "d_model": 768, "num_heads": 12, "vocab_size": 8192},
)


@pytest.mark.parametrize("column", range(len(RUNS_IN_THE_DOCUMENT)))
def test_volunteers_read_what_the_plan_says_a_run_costs(column):
    data = {"source": "tokens:"} if column == 2 else {}
    manifest = RunManifest(name="tiny", model=RUNS_IN_THE_DOCUMENT[column], data=data)
    sizes = seed_sizes(manifest)
    plan = plan_run(manifest, sizes)
    told = " ".join(report.lines_for_a_home(plan))
    model = manifest.model
    told += f" {count_text(plan.num_parameters)} parameters, {model.num_layers} of {model.d_model}"
    table = section(VOLUNTEERS, "What does it cost?")
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    cells = [row[column + 1].strip() for row in rows]
    assert len(cells) == 7
    assert not [cell for cell in cells if f" {cell.removesuffix(' parameters')}" not in told]


BAD_RUNS = {
    "missing": (None, "expected a readable run file or manifest"),
    "no TOML": (b"[averaging", "is not a TOML file"),
    "unknown field": (b"[averaging]\nsync_evry = 3", "did you mean sync_every?"),
    "out of range": (b"[averaging]\nsync_every = 0", "averaging.sync_every is 0"),
    "bytes": (bytes(range(256)), "is not text; expected a TOML file"),
    "wrong JSON": (b'{"name": ', "expecting value"),
    "JSON with another field": (b'{"name": "a", "nam": 1}', "nam is not a field"),
    "large": (b" " * (2 << 20), "expected a run file or a manifest"),
    "more fragments than values": (
        b'[model]\nnum_parameters = 3\nlayout_digest = "' + b"0" * 64 + b'"\n',
        "cannot be cut",
    ),
}


@pytest.mark.parametrize("case", BAD_RUNS)
def test_runs_that_cannot_be_read(tmp_path, capsys, case):
    content, expected = BAD_RUNS[case]
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    assert run(["plan", str(path)]) in (2, 4)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err.lower() or expected in captured.err
    assert captured.err.count("\n") == 1


def test_a_changed_run_record_is_refused(tmp_path, capsys):
    path = create_run("tiny", None, tmp_path / "run").run_record_path
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    assert run(["plan", str(path)]) == 2
    assert "a wrong signature" in capsys.readouterr().err


def test_a_folder_is_no_run(tmp_path, capsys):
    assert run(["plan", str(tmp_path)]) == 2
    assert "directory" in capsys.readouterr().err
