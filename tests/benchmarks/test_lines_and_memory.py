"""Benchmarks of rounds and of memory: real members on loopback, the limit of the lines, complaints."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from averaging.codec.codec import make_codec
from benchmarks import bench_memory
from benchmarks.bench_round import limit_seconds
from benchmarks.lines.home_lines import home_lines, numbers


def lines(peers, up, down=None, values=1_000_000):
    return Namespace(lab="lab.py", peers=peers, up=up, down=down, values=values, codec="int4")


def test_equal_lines_need_what_reduce_scatter_and_all_gather_send():
    encoded_bits = 8 * make_codec("int4", 128).encoded_num_bytes(1_000_000)
    for peers in (2, 4, 16):
        expected = 2 * (peers - 1) / peers * encoded_bits / 100e6
        assert limit_seconds(lines(peers, "100")) == pytest.approx(expected, rel=1e-6)


def test_a_slow_line_costs_its_own_contribution_and_no_more():
    encoded_bits = 8 * make_codec("int4", 128).encoded_num_bytes(1_000_000)
    assert limit_seconds(lines(4, "20/50/100/100")) == pytest.approx(encoded_bits / 20e6, rel=1e-6)
    assert limit_seconds(lines(4, "100/100/100/100", "20/100/100/100")) > limit_seconds(lines(4, "100"))


@pytest.mark.parametrize("text", ["", "fast", "1/2", "0", "-3", "1/2/3/x", "nan", "inf"])
def test_rates_that_make_no_sense_are_named(text):
    with pytest.raises(SystemExit, match=r"--up .*expected one number of Mbit/s above 0 .* or 4 with /"):
        numbers(text, 4, "--up")


@pytest.mark.parametrize("source", [None, "Lab = 1 / 0", "import sys; sys.exit(3)", "Other = 1", "def ("])
def test_a_lab_that_cannot_be_loaded_is_named(tmp_path: Path, source):
    path = tmp_path / "lab.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(SystemExit, match=r"lab\.py.*expected "), home_lines(path, [1.0], [1.0], 10.0):
        pass


def test_lines_that_cannot_be_laid_say_who_may(tmp_path: Path):
    path = tmp_path / "lab.py"
    path.write_text(
        "class Lab:\n"
        "    def __init__(self, num_hosts, **line): pass\n"
        "    def __enter__(self): raise PermissionError(1, 'Operation not permitted')\n"
        "    def __exit__(self, *error): pass\n"
    )
    with pytest.raises(SystemExit, match=r"Operation not permitted.*expected root"), home_lines(path, [1], [1], 10.0):
        pass


@pytest.mark.parametrize(("rtt", "loss"), [(-1, 0), (float("nan"), 0), (30, 1), (30, float("nan"))])
def test_impossible_lines_are_named(tmp_path: Path, rtt, loss):
    with pytest.raises(SystemExit, match="expected 1 to 64 lines"), home_lines(tmp_path, [1.0], [1.0], rtt, loss):
        pass


def test_memory_is_looked_at_over_committed_and_failed_rounds(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_memory", "--rounds", "10", "--values", "5000", "--json"])
    assert bench_memory.main() == 0
    result = json.loads(capsys.readouterr().out)
    assert result["committed"]["commits_seen_by_one_peer"] >= 10
    assert result["committed"]["failed_attempts"] == 0
    assert result["failed"]["failed_attempts"] >= 10
    assert [number for number, _ in result["failed"]["resident_mb"]] == list(range(11))
