"""`peer doctor`: one sentence and one remedy for each problem, and an exit code that says whether to join."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dht.ground.errors import PeerUnreachable
from dht.identity.keys import Identity
from dht.identity.speakable import speakable_name
from peer.config.peer_config import load_config
from peer.console.plain_console import PlainConsole
from peer.doctor.doctor import doctor_json, in_vain, run_doctor
from peer.doctor.doctor_facts import DoctorFacts, LineFacts, MachineFacts, ReportedRun
from peer.doctor.findings import Finding, diagnose, exit_code_of
from peer.doctor.report import print_report
from peer.network.reachability.probe_client import DialBack
from peer.observe.run_and_address import Target
from peer.plan.usual_home_needs import HomeNeeds
from tests.kit.network.memory_networks import named

GB = 10**9
MEMBER = named(1)
HERE = "/ip4/203.0.113.7/tcp/4001"
MACHINE = MachineFacts(
    versions={"murmuration": "0.1.0", "Python": "3.11.2", "torch": "2.13.0", "hivemind": "1.1.12"},
    device="NVIDIA H200",
    device_fault="",
    device_free_bytes=40 * GB,
    memory_free_bytes=60 * GB,
    disk_free_bytes=500 * GB,
    data_dir="/home/ada/run",
    port_fault="",
    congestion_control="bbr",
)
NEEDS = HomeNeeds(
    disk_bytes=60 * GB,
    device_bytes=16 * GB,
    host_bytes=20 * GB,
    upload_bits_per_second=9e6,
    download_bits_per_second=9e6,
)
RUN = ReportedRun(
    run_id="tiny.abcdefghij234567abcd",
    manifest_hash="ab" * 32,
    own_manifest_hash="",
    num_members=12,
    num_others=0,
    newer_software="",
    minimum_software="",
    has_ended=False,
    needs=NEEDS,
)
LINE = LineFacts(
    asked=(MEMBER,),
    clock_offset_seconds=0.02,
    round_trip_seconds=0.04,
    upload_bits_per_second=20e6,
    download_bits_per_second=100e6,
    dial_back=DialBack(reached=(f"{HERE}/p2p/{MEMBER}",)),
)
WELL = DoctorFacts(MACHINE, RUN, LINE)


def changed(part: str, **changes: Any) -> DoctorFacts:
    """`WELL` with one part, or with fields of its own, replaced."""
    if part == "needs":
        run = dataclasses.replace(RUN, needs=dataclasses.replace(NEEDS, **changes))
        return dataclasses.replace(WELL, run=run)
    if part == "":
        return dataclasses.replace(WELL, **changes)
    return dataclasses.replace(WELL, **{part: dataclasses.replace(getattr(WELL, part), **changes)})


def shown(facts: DoctorFacts, width: int = 80, then: str = "") -> str:
    output = io.StringIO()
    print_report(RUN.run_id, facts, then, PlainConsole(file=output, width=width, color_system=None))
    return output.getvalue()


def finding_of(facts: DoctorFacts, subject: str) -> Finding:
    (found,) = [finding for finding in diagnose(facts) if finding.subject == subject]
    return found


def test_what_was_tried_with_a_member_is_said_in_words() -> None:
    reason = "no peer that this peer is connected to knows an address of it"
    fault = PeerUnreachable(MEMBER, f"cannot open /probe: {reason}; this peer retries or goes on without it", reason)
    assert in_vain(MEMBER, fault) == f"the measurement with {speakable_name(MEMBER)} failed: {reason}"


def test_when_all_is_well_every_line_says_so_and_joining_makes_sense() -> None:
    findings = diagnose(WELL)
    assert [finding.subject for finding in findings] == [
        *("software", "device", "memory", "disk", "congestion"),
        *("manifest", "clock", "reachable", "upload", "download"),
    ]
    assert {finding.level for finding in findings} == {"ok"}
    assert not any(finding.remedy for finding in findings)
    assert exit_code_of(findings) == 0


def test_a_system_that_names_no_congestion_control_has_no_such_line() -> None:
    assert "congestion" not in [finding.subject for finding in diagnose(changed("machine", congestion_control=""))]


PROBLEMS: list[tuple[str, DoctorFacts, str, str, str, int]] = [
    # subject, facts, level, words of the finding, words of the remedy, exit code of the command
    ("software", changed("machine", versions={"torch": ""}), "stop", "torch cannot be found", "pip install", 1),
    ("software", changed("run", minimum_software="9.0.0"), "stop", "owner asks for 9.0.0", "git pull", 4),
    ("software", changed("run", newer_software="murmuration 0.2.0"), "note", "members run", "git pull", 0),
    (
        "device",
        changed("machine", device_fault="device 'cuda' is not available"),
        "stop",
        "not available",
        "--device",
        5,
    ),
    (
        *("network", DoctorFacts(dataclasses.replace(MACHINE, has_way_out=False)), "stop"),
        *("it reaches no member", "connect it", 3),
    ),
    ("device", changed("needs", device_bytes=50 * GB), "stop", "needs 50.0 GB of 40.0 GB free", "more memory", 5),
    ("device", changed("needs", device_bytes=38 * GB), "note", "needs 38.0 GB of 40.0 GB", "activations", 0),
    ("memory", changed("needs", host_bytes=80 * GB), "stop", "needs 80.0 GB of 60.0 GB", "end other programs", 1),
    ("memory", changed("machine", memory_free_bytes=21 * GB), "note", "of 21.0 GB free", "end other programs", 0),
    (
        "memory",
        changed("machine", device_free_bytes=None, memory_free_bytes=30 * GB),
        "stop",
        "needs 36.0 GB",
        "end",
        1,
    ),
    ("disk", changed("machine", disk_free_bytes=3 * GB), "stop", "60.0 GB of 3.00 GB free", "--data-dir", 1),
    ("disk", changed("machine", disk_free_bytes=60 * GB + 1), "note", "60.0 GB of 60.0 GB", "free some space", 0),
    ("congestion", changed("machine", congestion_control="cubic"), "note", "packets are lost", "sysctl", 0),
    (
        "kernels",
        changed("machine", kernels_fault="kernels are of an older source"),
        "note",
        "four times",
        "compiler",
        0,
    ),
    ("disk", changed("machine", disk_free_bytes=None), "stop", "cannot be examined", "--data-dir", 1),
    ("disk", changed("machine", folder_fault="/home/ada cannot be written"), "stop", "cannot be", "--data-dir", 1),
    ("ports", changed("machine", port_fault="the port is taken"), "stop", "the port is taken", "--listen", 1),
    ("run", DoctorFacts(MACHINE, run_fault="nobody answered", run_fault_code=3), "stop", "nobody answered", "", 3),
    ("manifest", changed("run", has_ended=True), "stop", "has ended the run", "another run", 4),
    ("manifest", changed("run", own_manifest_hash="cd" * 32), "note", "cdcdcdcdcdcdcdcd here", "--data-dir", 0),
    ("manifest", changed("run", num_others=2), "note", "2 of them with a different manifest", "owner", 0),
    ("data", changed("run", data_fault="give --data tokens:PATH"), "note", "give --data", "join.md", 0),
    ("data", changed("run", data_fault="no such file", data_fault_code=2), "stop", "no such file", "", 2),
    ("weights", changed("run", weights_fault="--base is missing"), "note", "--base is missing", "--base DIR", 0),
    (
        *("weights", changed("run", weights_fault="their digest is another", weights_fault_code=4), "stop"),
        *("their digest is another", "", 4),
    ),
    ("weights", changed("run", weights_fault="no such folder", weights_fault_code=2), "stop", "no such folder", "", 2),
    ("manifest", changed("run", num_members=0), "note", "no member trains now", "first trainer", 0),
    ("line", changed("", line=LineFacts(faults=("peer x: gone",))), "note", "not measured: peer x: gone", "again", 0),
    ("clock", changed("line", clock_offset_seconds=-75.0), "stop", "1 min 15 s ahead of", "time service", 1),
    ("clock", changed("line", clock_offset_seconds=9.0), "note", "9 s behind", "time service", 0),
    ("clock", changed("line", clock_offset_seconds=None), "note", "no member reported", "again", 0),
    ("reachable", changed("line", dial_back=DialBack()), "note", "unknown", "another member", 0),
    (
        "reachable",
        changed("line", dial_back=DialBack(failed=((f"{HERE}/p2p/{MEMBER}", "timeout"),))),
        "note",
        "no answer at /ip4/203.0.113.7/tcp/4001. Such a peer still contributes",
        "forward TCP 4001 in the router",
        0,
    ),
    (
        "reachable",
        changed(
            "line",
            dial_back=DialBack(failed=((f"{HERE}/p2p/{MEMBER}", "timeout"),)),
            own_addresses=(f"{HERE}/p2p/{MEMBER}",),
        ),
        "note",
        "no answer at",
        "open TCP 4001 in the firewall of this machine",
        0,
    ),
    ("upload", changed("line", upload_bits_per_second=4e6), "note", "4.00 Mbit/s with .* need 9.00 Mbit/s", "cable", 0),
    (
        "upload",
        changed("line", upload_limit_bits_per_second=1e6),
        "note",
        "limited to 1.00 Mbit/s",
        "--upload-limit",
        0,
    ),
    ("upload", changed("line", upload_bits_per_second=None), "note", "not measured", "again", 0),
    ("download", changed("line", download_bits_per_second=1e6), "note", "1.00 Mbit/s with", "end other transfers", 0),
]


@pytest.mark.parametrize(("subject", "facts", "level", "words", "remedy", "exit_code"), PROBLEMS)
def test_each_problem_has_a_sentence_a_remedy_and_an_exit_code(
    subject: str, facts: DoctorFacts, level: str, words: str, remedy: str, exit_code: int
) -> None:
    finding = finding_of(facts, subject)
    assert finding.level == level
    assert re.search(words, finding.what), finding.what
    assert remedy in finding.remedy
    assert bool(finding.remedy) == bool(remedy)
    assert exit_code_of(diagnose(facts)) == exit_code


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (HERE, "yes, at /ip4/203.0.113.7/tcp/4001"),
        ("/ip4/192.168.1.7/tcp/1", "private network"),
        ("/ip6/::1/tcp/1", "this machine"),
    ],
)
def test_where_a_peer_was_dialled_from_is_said(address: str, words: str) -> None:
    facts = changed("line", dial_back=DialBack(reached=(f"{address}/p2p/{MEMBER}",)))
    finding = finding_of(facts, "reachable")
    assert finding.level == "ok"
    assert words in finding.what


@pytest.mark.parametrize("facts", [WELL, *(problem[1] for problem in PROBLEMS)])
def test_it_fits_80_columns_and_ends_in_a_verdict(facts: DoctorFacts) -> None:
    code = exit_code_of(diagnose(facts))
    lines = shown(facts).rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(f"Joining makes {'no sense yet' if code else 'sense'}") for line in lines[-4:])


@pytest.mark.parametrize(
    "facts",
    [
        changed("run", data_fault="give --data tokens:PATH"),
        changed("run", own_code_hint="https://example.org/code"),
        dataclasses.replace(WELL, run=None),
    ],
)
def test_a_command_that_would_not_do_is_not_shown(facts: DoctorFacts) -> None:
    assert "peer join it" not in shown(facts, then="peer join it")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_command_and_an_address_are_never_broken(width: int) -> None:
    for _, facts, *_ in PROBLEMS:
        text, findings = shown(facts, width), diagnose(facts)
        lines = text.splitlines()
        for command in re.findall("`[^`]+`", "".join(one.remedy for one in findings)):
            assert any(command in line for line in lines), command
        assert set(" ".join(f"{one.what} {one.remedy}" for one in findings).split()) <= set(text.split())


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (0.4, "rounds need less than 1.00 kbit/s"),
        (999.0, "rounds need less than 1.00 kbit/s"),
        (1000.0, "rounds need 1.00 kbit/s"),
    ],
)
def test_what_rounds_want_is_a_figure_that_says_something(needed: float, said: str) -> None:
    facts = changed("needs", upload_bits_per_second=needed, download_bits_per_second=needed)
    for way in ("upload", "download"):
        assert finding_of(facts, way).what.endswith(f"; {said}")


def test_members_on_this_machine_need_no_network() -> None:
    offline = changed("machine", has_way_out=False)
    assert exit_code_of(diagnose(offline)) == 0
    assert "network" in [one.subject for one in diagnose(DoctorFacts(offline.machine))]


def test_without_a_network_nothing_is_said_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("peer.network.membership.way_out._has_route", lambda host: False)
    monkeypatch.setattr(
        "peer.doctor.doctor.look_at_machine", lambda config: changed("machine", has_way_out=False).machine
    )
    peers = (f"/ip4/203.0.113.5/tcp/4001/p2p/{Identity.from_seed(bytes([1]) * 32).peer_id}",)
    config = load_config({"run_id": RUN.run_id, "peers": peers, "data_dir": str(tmp_path)})
    assert run_doctor(config, Target(RUN.run_id, list(peers), tmp_path), 20.0, as_json=True) == 3
    stops = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["level"] == "stop"]
    assert [one["subject"] for one in stops] == ["network"]


def test_a_custom_run_invites_to_its_code_and_not_to_peer_join() -> None:
    hint = "its code is at https://example.org/a@0; start it there with `python train.py`"
    facts = dataclasses.replace(WELL, run=dataclasses.replace(RUN, needs=None, own_code_hint=hint))
    findings, text = diagnose(facts), shown(facts, 400)
    assert [(one.level, one.remedy) for one in findings if one.subject == "model"] == [("note", hint)]
    assert "Joining makes sense" not in text
    assert text.splitlines()[-1].startswith("`peer join` cannot join this run; the code of its owner can")


def test_the_verdict_says_what_is_still_to_be_given() -> None:
    for faults, ending in (
        ({}, "Joining makes sense"),
        ({"data_fault": "no"}, "Joining makes sense with --data"),
        ({"data_fault": "no", "weights_fault": "no"}, "Joining makes sense with --data and --base"),
    ):
        text = shown(changed("run", **faults), 400)
        assert re.split(r"[:.]", text.splitlines()[-1])[0] == ending


def test_json_has_the_findings_and_addresses_as_text() -> None:
    facts = json.loads(json.dumps(doctor_json(WELL, 0)))
    assert facts["makes_sense"] is True
    assert {"subject": "clock", "level": "ok"}.items() <= next(
        finding for finding in facts["findings"] if finding["subject"] == "clock"
    ).items()
    assert facts["facts"]["line"]["dial_back"]["reached"] == [f"{HERE}/p2p/{MEMBER}"]
