"""The benchmark of rounds between real members on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from averaging.codec.codec import make_codec


def test_a_round_between_real_members_is_measured():
    command = [sys.executable, "-m", "benchmarks.bench_round", "--peers", "2", "--values", "50000", "--rounds", "1"]
    ended = subprocess.run(
        [*command, "--fragments", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["all_equal"]
    assert result["all_members_in_all_rounds"]
    encoded_bytes = 2 * make_codec("int4", 128).encoded_num_bytes(25_000)
    # Two members send half of the contribution and half of the result each, and small messages.
    assert encoded_bytes <= 1e6 * result["megabytes_sent_per_peer"] < encoded_bytes + 6000
