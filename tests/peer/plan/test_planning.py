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

from averaging.codec.blocks import CODE_FORMATS, encoded_num_bytes
from averaging.codec.codec import make_codec
from averaging.outer.fragment_layout import build_layout
from averaging.rounds.round_facts import RoundCommitted
from dht.ground.quantities import count_text
from dht.ground.store import NUM_HOLDERS_READ
from dht.kademlia.dht_node import NUM_REPLICAS
from peer.cli.app import run
from peer.config.learning_rate_schedule import ScheduleSection
from peer.config.manifest import RunManifest
from peer.config.training_section import TrainingSection
from peer.mailbox.mailbox import mailbox_num_bytes
from peer.owner.new_run import create_run
from peer.plan import plan_source, report
from peer.plan.homes import HomeGroup, PlanProfile, load_profile
from peer.plan.plan_source import plan_of
from peer.plan.planning import RECORD_HOLDERS, RECORD_READS, plan_run
from peer.plan.round_seconds import LINE_SHARE, MemberLink, round_seconds, round_traffic
from peer.trainer.model.gpt import build_model
from peer.trainer.model.inner_optimizer import make_optimizer
from tests.kit.documents import section
from tests.simulator.network.lines import LineSettings
from tests.simulator.scenarios.spec import Fault, PeerSpec, SimulationSpec, WorkloadSection, tiny_manifest
from tests.simulator.simulation import simulate

DOCUMENT = (Path(__file__).parents[3] / "docs" / "organiser" / "planning.md").read_text(encoding="utf-8")
EXAMPLE = Path(__file__).parents[3] / "examples" / "homes.toml"
INT4 = make_codec("int4", 128)
MILLION = 1 << 20


def sizes_of(num_fragments=4):
    return build_layout([("all", (MILLION,))], num_fragments, "balanced").sizes


def manifest_of(**averaging):
    return RunManifest.from_fields({"name": "planned", "averaging": averaging})


def homes(*groups, **fields):
    return PlanProfile(peers=tuple(HomeGroup(**group) for group in groups), **fields)


# --- traffic ---


@given(
    st.integers(1, 300_000),
    st.lists(st.tuples(st.floats(1e5, 1e9), st.booleans()), min_size=1, max_size=12),
    st.sampled_from(sorted(CODE_FORMATS)),
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


@pytest.mark.parametrize("num_members", [2, 4, 16, 128])
def test_equal_members_send_two_fragments_less_two_shards(num_members):
    payload_bytes = encoded_num_bytes("int4", 128, MILLION)
    for part in round_traffic(MILLION, INT4, [MemberLink(1e7, 1e8)] * num_members):
        expected = (num_members - 1) / num_members * payload_bytes
        # Headers (most where shards are small), and shards that begin at whole blocks.
        assert part.contribution_bytes_up == pytest.approx(expected, rel=0.03)
        assert part.result_bytes_up == pytest.approx(expected, rel=0.03)
        assert part.contribution_bytes_up > 0.99 * expected


def test_a_lone_peer_and_an_unreachable_one():
    (alone,) = round_traffic(MILLION, INT4, [MemberLink(1e7, 1e8)])
    assert alone.bytes_up == alone.bytes_down == 0
    assert round_seconds([alone], [MemberLink(1e7, 1e8, 1.0)]) == 0
    hidden, open_ = round_traffic(MILLION, INT4, [MemberLink(1e9, 1e9, reachable=False), MemberLink(1e6, 1e9)])
    assert hidden.values == MILLION
    assert hidden.result_bytes_up == 0
    assert open_.values == 0


def test_a_tiny_first_fragment_does_not_stand_for_the_others():
    plan = plan_run(manifest_of(num_fragments=4), homes({"count": 4}), (48, 12_000, 27_000, 27_000))
    assert 4 < plan.contribution_bits_per_parameter < 6
    assert 4 < plan.result_bits_per_parameter < 6


def test_seeds_hear_of_commits_and_long_rounds_of_leaders():
    lines = [MemberLink(1e7, 1e8)] * 3
    plain, with_seeds, long = (
        round_traffic(MILLION, INT4, lines, *more)[0].control_bytes_up for more in ((), (2,), (0, 9.5))
    )
    assert plain < with_seeds
    assert plain < long


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
    manifest = tiny_manifest(3, sync_every=8, num_fragments=2, block_size=128, codec="int4")
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
        48,
        3,
        manifest,
        (Fault(0.1, "start", tuple(range(num_peers))),),
        profiles=peers,
        workload=WorkloadSection(num_values=num_values, tokens_per_step=64, learning_rate=0.1, noise=0.1),
        duration_seconds=96.0,
    )
    result = simulate(spec, note)
    assert result.violations == ()
    lines = [MemberLink(rate, rate, latency_seconds)] * num_peers
    expected = round_traffic(num_values // 2, INT4, lines, seconds=1.0)
    assert len(whole) >= 20
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
    """One fragment of 2^20 values, two peers, H 10, 2 s a step: 20 s for half a contribution and half a mean."""
    manifest = manifest_of(sync_every=10, num_fragments=1)
    profile = homes({"count": 2, "step_seconds": 2.0, "upload_mbit_per_second": 1.0}, goal={"tokens": 10**6})
    plan = plan_run(manifest, profile, sizes_of(1))
    (home,) = plan.homes
    part = round_traffic(MILLION, INT4, [profile.peers[0].line] * 2, seconds=plan.round_seconds)[0]
    payload_bits = 8 * encoded_num_bytes("int4", 128, MILLION)
    assert plan.interval_seconds == 20.0
    assert home.needed_upload_bits_per_second == pytest.approx(payload_bits / LINE_SHARE / 20, rel=0.005)
    assert home.upload_share == pytest.approx(home.needed_upload_bits_per_second / 1e6)
    assert home.upload_bytes_per_hour == pytest.approx(180 * part.bytes_up / LINE_SHARE)
    assert (home.utilisation, home.in_time) == (1.0, 1.0)
    step_tokens = manifest.training.batch_size * manifest.model.context
    assert plan.tokens_per_second == pytest.approx(step_tokens)
    assert plan.goal_seconds == pytest.approx(10**6 / step_tokens)
    assert plan.join_bytes == 8 * MILLION
    assert plan.warnings == ()


def test_a_plan_goes_by_the_runs_own_budget_unless_the_profile_names_another_goal():
    manifest = manifest_of()
    schedule = ScheduleSection(kind="cosine", tokens=5 * 10**6)
    manifest = manifest.model_copy(update={"training": manifest.training.model_copy(update={"schedule": schedule})})
    assert plan_run(manifest, homes({"count": 2}), sizes_of()).goal_tokens == 5 * 10**6
    assert plan_run(manifest, homes({"count": 2}, goal={"tokens": 7}), sizes_of()).goal_tokens == 7
    assert plan_run(manifest_of(), homes({"count": 2}), sizes_of()).goal_tokens == 10**9


def test_a_line_that_is_too_slow_is_told_and_slows_the_rounds():
    manifest = manifest_of(sync_every=10, num_fragments=2)
    profile = homes({"count": 3}, {"name": "modem", "count": 1, "upload_mbit_per_second": 0.1})
    plan = plan_run(manifest, profile, sizes_of(2))
    modem = plan.homes[1]
    assert modem.upload_share > 1
    assert modem.utilisation == 1.0
    assert modem.in_time < 1
    assert plan.interval_seconds > 10.0
    assert modem.upload_bytes_per_hour <= 1e5 / 8 * 3600 * 1.001
    assert "modem" in plan.warnings[0]


def test_a_peer_sends_about_as_much_in_a_round_of_any_size():
    sizes = [32 << power for power in range(8)]
    plans = [plan_run(manifest_of(num_fragments=1), homes({"count": size}), (25_000_000,)) for size in sizes]
    hourly = [plan.homes[0].upload_bytes_per_hour * plan.interval_seconds for plan in plans]
    assert hourly[-1] / hourly[0] == pytest.approx(1, abs=0.05)
    assert plans[0].warnings == ()
    assert plans[-1].round_seconds < 1.2 * plans[0].round_seconds


def test_rounds_beyond_their_deadline_and_more_peers_than_contributors_are_told():
    manifest = manifest_of(sync_every=1000, num_fragments=1, round_deadline_seconds=2.0)
    slow = plan_run(manifest, homes({"upload_mbit_per_second": 0.5}), sizes_of(1))
    assert "round_deadline_seconds" in slow.warnings[0]
    many = plan_run(manifest_of(), homes({"count": 3}, {"name": "many", "count": 1000}), sizes_of())
    assert "1003 peers contribute in 5 turns" in many.warnings[0]
    assert not any("staleness_limit" in warning for warning in many.warnings)
    most = plan_run(manifest_of(), homes({"count": 4096}), sizes_of())
    assert "staleness_limit is 4: older work is dropped; raise it to 18" in most.warnings[1]
    hidden = plan_run(manifest_of(), homes({"count": 3, "reachable": False}), sizes_of())
    assert "reachable" in hidden.warnings[0]


def test_only_lock_step_waits():
    group = {"count": 4, "upload_mbit_per_second": 1.0}
    computing = {
        mode: plan_run(manifest_of(mode=mode, sync_every=30), homes(group), sizes_of()).homes[0]
        for mode in ("sync", "streaming", "carry")
    }
    assert computing["sync"].utilisation < 0.95
    assert computing["sync"].in_time == 1.0
    assert computing["streaming"].utilisation == computing["carry"].utilisation == 1.0


def test_slower_machines_send_after_fewer_steps():
    plan = plan_run(manifest_of(sync_every=30), homes({"step_seconds": 1.0}, {"step_seconds": 3.0}), sizes_of())
    assert [home.sync_every for home in plan.homes] == [30, 10]
    assert plan.homes[0].tokens_per_second == pytest.approx(3 * plan.homes[1].tokens_per_second)


def test_more_bits_need_a_faster_line():
    int4, fp32 = (
        plan_run(manifest_of(codec=codec), PlanProfile(), sizes_of()).homes[0].upload_share
        for codec in ("int4", "fp32")
    )
    assert fp32 / int4 == pytest.approx(32 / 4.125, rel=0.02)


def test_memory_counts_what_the_code_keeps():
    plan = plan_run(manifest_of(num_fragments=4), PlanProfile(), sizes_of())
    memory = plan.homes[0].network_memory
    section = manifest_of(num_fragments=4).averaging
    sent = [encoded_num_bytes(section.codec, section.block_size, size) for size in sizes_of(4)]
    assert memory.mailbox_bytes == mailbox_num_bytes(sizes_of(4), sent)
    assert memory.velocity_bytes == 0
    assert plan_run(manifest_of(mode="eager"), PlanProfile(), sizes_of()).homes[0].network_memory.velocity_bytes == (
        4 * MILLION
    )
    trainer = plan.homes[0].trainer_memory
    assert trainer.total_bytes - trainer.libraries_bytes - trainer.checkpoint_bytes == 20 * MILLION
    # Two of four fragments with their momentum for newcomers.
    assert memory.copies_bytes == 4 * MILLION
    assert plan.disk_bytes > 3 * 28 * MILLION


def test_muon_keeps_one_velocity_where_adamw_has_two_moments():
    """As the optimizers themselves have it, after a step."""
    plans, kept = {}, {}
    for name in ("adamw", "muon"):
        manifest = RunManifest(name="r", training=TrainingSection(optimizer=name))
        plans[name] = plan_of(manifest, PlanProfile())
        model = build_model(manifest.model, 0)
        optimizer = make_optimizer(model.named_parameters(), manifest.training)
        model.loss(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)).backward()
        optimizer.step()
        states = optimizer.state_dict()["state"].values()
        kept[name] = sum(v.nbytes for state in states for v in state.values() if torch.is_tensor(v) and v.dim())
    homes_of = {name: plan.homes[0].trainer_memory for name, plan in plans.items()}
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
        assert run(["plan", "--peers", str(EXAMPLE), path, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        names.append(told["run"])
        assert len(told["fragment_sizes"]) == 2
        assert [home["count"] for home in told["homes"]] == [3, 5]
    assert names == ["unnamed", "tiny", "tiny", "tiny"]


def test_people_are_told_the_same(tmp_path, capsys):
    path = write(tmp_path, "run.toml", 'name = "tiny"\n')
    assert run(["plan", path, "--full"]) == 0
    told = capsys.readouterr().out
    plan = plan_of(RunManifest(name="tiny"), PlanProfile())
    assert "tiny" in told
    assert f"{plan.homes[0].needed_upload_bits_per_second / 1e6:.3g}" in told
    assert "activations not counted" in " ".join(told.split())


@pytest.mark.parametrize(("sync_every", "shown"), [(1, "5.4"), (30, "0.18"), (10_000, "0.00054")])
def test_a_home_reads_its_rate_without_powers_of_ten(sync_every, shown):
    manifest = RunManifest(name="tiny", averaging={"sync_every": sync_every})
    plan = plan_of(manifest, PlanProfile())
    traffic = report.lines_for_a_home(plan)[0]
    assert f" {shown} Mbit/s up and {shown} Mbit/s down are enough" in traffic
    assert report.counted_for(PlanProfile()).startswith("Counted for machines that take 1 s for a step;")
    assert "1.00 G tokens in" in report.lines_for_a_home(plan)[-1]
    huge = replace(plan.homes[0], needed_upload_bits_per_second=1.4534e8)
    assert " 150 Mbit/s up" in report.lines_for_a_home(replace(plan, homes=(huge,)))[0]


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
    sizes = plan_source.sizes_of(manifest)
    plan = plan_run(manifest, PlanProfile(), sizes)
    told = " ".join(report.lines_for_a_home(plan))
    told += f" {count_text(plan.num_parameters)} parameters"
    table = section(VOLUNTEERS, "What does it cost?")
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    cells = [row[column + 1].strip() for row in rows]
    assert len(cells) == 6
    assert not [cell for cell in cells if f" {cell.removesuffix(' parameters')}" not in told]


BAD_PROFILES = {
    "zero upload": ("[[peers]]\nupload_mbit_per_second = 0", "upload_mbit_per_second is 0; expected a finite number"),
    "negative download": ("[[peers]]\ndownload_mbit_per_second = -5.0", "download_mbit_per_second is -5.0; expected"),
    "no step time": ("[[peers]]\nstep_seconds = 0", "step_seconds is 0; expected"),
    "no peers": ("peers = []", "peers"),
    "nobody": ("[[peers]]\ncount = 0", "count is 0; expected a whole number from 1"),
    "infinite": ("[[peers]]\nstep_seconds = inf", "step_seconds"),
    "not a number": ("[[peers]]\nupload_mbit_per_second = nan", "upload_mbit_per_second"),
    "text": (
        '[[peers]]\nupload_mbit_per_second = "fast"',
        "upload_mbit_per_second is 'fast'; expected a",
    ),
    "unknown key": ("[[peers]]\nupload_mbits = 5", "upload_mbits is not a known field"),
    "unknown section": ("[goals]\ntokens = 5", "goals is not a field at the top level; did you mean goal?"),
    "one table": ("[peers]\ncount = 3", "expected [[peers]]"),
    "list of numbers": ("peers = [1, 2]", "peers table 1"),
    "too many groups": ("[[peers]]\n" * 40, "peers"),
    "no TOML": ("peers = [", "is not a TOML file"),
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_impossible_profiles(tmp_path, capsys, case):
    text, expected = BAD_PROFILES[case]
    path = write(tmp_path, "homes.toml", text)
    assert run(["plan", write(tmp_path, "run.toml", "seed = 1"), "--peers", path]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.startswith(f"peer: {path}")
    assert captured.err.count("\n") == 1


BAD_RUNS = {
    "missing": (None, "expected a readable run file or manifest"),
    "no TOML": (b"[averaging", "is not a TOML file"),
    "unknown field": (b"[averaging]\nsync_evry = 3", "did you mean sync_every?"),
    "out of range": (b"[averaging]\nsync_every = 0", "averaging.sync_every is 0"),
    "bytes": (bytes(range(256)), "is not a TOML file: it is no text"),
    "wrong JSON": (b'{"name": ', "expecting value"),
    "JSON with another field": (b'{"name": "a", "nam": 1}', "nam is not a field"),
    "large": (b" " * (2 << 20), "expected a run file or a manifest"),
    "more fragments than values": (
        b'[model]\nkind = "custom"\nnum_parameters = 3\nlayout_digest = "' + b"0" * 64 + b'"\n',
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
    assert "signature is wrong" in capsys.readouterr().err


def test_a_folder_is_no_run(tmp_path, capsys):
    assert run(["plan", str(tmp_path)]) == 2
    assert "directory" in capsys.readouterr().err


def test_without_a_run_nothing_is_planned(capsys):
    assert run(["plan"]) == 2
    assert "xpected" in capsys.readouterr().err


# --- the document ---


def test_a_day_has_24_hours_of_traffic(tmp_path, capsys):
    assert run(["plan", write(tmp_path, "run.toml", "seed = 1"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    home = told["homes"][0]
    assert home["upload_bytes_per_day"] == pytest.approx(24 * home["upload_bytes_per_hour"])


def test_every_field_of_a_profile_is_described_with_its_default():
    described = {
        line.split("|")[1].strip(" `"): line.split("|")[3].strip(" `")
        for line in DOCUMENT.splitlines()
        if line.startswith(("| `peers.", "| `goal.", "| `num_seeds"))
    }
    defaults = PlanProfile().model_dump()
    in_code = {f"peers.{name}": value for name, value in defaults["peers"][0].items()}
    in_code |= {f"goal.{name}": value for name, value in defaults["goal"].items()}
    in_code["num_seeds"] = defaults["num_seeds"]
    assert described == {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in in_code.items()
    }
    assert load_profile(None) == PlanProfile()
