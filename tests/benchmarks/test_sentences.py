"""Benchmarks that cannot run say so in a sentence and end with another code than zero; what they check is right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from benchmarks import bench_footprint, bench_join, bench_stall
from benchmarks.members.processes import family, look, role
from benchmarks.other_systems import gloo, hivemind_averager, swarm, torchft_diloco, work


@pytest.mark.parametrize(
    ("main", "arguments", "expected"),
    [
        (bench_stall.main, ["--cores", "some"], "expected some of apart, same"),
        (bench_stall.main, ["--seconds", "nan"], "expected 1 to 3600"),
        (bench_join.main, ["--donors", "0"], "expected at least 1 donor"),
        (bench_footprint.main, ["--models", "7"], "expected some of 25, 250"),
        (bench_footprint.main, ["--rounds", "0"], "expected at least 1 round"),
        (gloo.main, ["--bits", "3"], "invalid choice"),
    ],
)
def test_impossible_arguments(main, arguments, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments", "expected"),
    [
        (bench_stall.main, ["--layers", "0"], "num_layers"),
        (bench_stall.main, ["--up", "1/2/3"], "--up 1/2/3: expected one number"),
        (gloo.main, ["--peers", "1"], "expected 2 to 64 peers"),
        (gloo.main, ["--kill", "-1"], "--kill -1: expected"),
        (gloo.main, ["--lab", "no-such-file.py"], "expected a Python file with a class Lab"),
    ],
)
def test_impossible_swarms(main, arguments, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        if main is bench_stall.main and (affinity is None or len(affinity) < 2):
            expected = "expected Linux and two"
        with pytest.raises(SystemExit, match=expected):
            main()
    finally:
        if affinity is not None:
            os.sched_setaffinity(0, affinity)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr(swarm.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    with pytest.raises(SystemExit, match=r"torchft is not installed.*pip install torchft"):
        torchft_diloco.main()


def test_a_compression_that_cannot_decode_is_not_measured(monkeypatch):
    monkeypatch.setattr(hivemind_averager, "broken_with", lambda bits: "TypeError: no")
    monkeypatch.setattr(sys, "argv", ["benchmark", "--bits", "8"])
    with pytest.raises(SystemExit, match=r"8-bit compression does not work.*TypeError: no.*numpy<2\.4"):
        hivemind_averager.main()


def test_members_average_what_is_checked():
    works = [work.made_up_work(1000, 3, member) for member in range(4)]
    expected = work.mean_of_heads(1000, 3, 4)
    mean = torch.stack(works).mean(0)
    assert work.outcome(mean, expected)["error"] < 1e-6
    assert work.outcome(works[0], expected)["error"] > 0.5
    assert work.outcome(mean, expected)["digest"] != work.outcome(works[0], expected)["digest"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc")
def test_a_family_has_its_children():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = {process.pid: process for process in family(os.getpid())}
        assert found[child.pid].parent == os.getpid()
        assert role(found[child.pid]) == "trainer"
        own = look(os.getpid())
        assert own is not None
        assert own.peak_mb > 10
        assert own.cpu_seconds > 0
    finally:
        child.communicate(b"\n")
