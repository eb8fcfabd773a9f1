"""`peer doctor` with a real seed: rates, clock, a dial from a fresh daemon, and the exit code."""

from __future__ import annotations

import json

from tests.kit.processes.process_swarm import process_swarm, wait_until

SOON_SECONDS = 180.0


def test_a_machine_that_can_join_is_told_so() -> None:
    with process_swarm() as swarm:
        seed = swarm.start("owner", command="seed")
        wait_until(lambda: "Listening on" in seed.stderr, "the seed is up", SOON_SECONDS)
        look = (
            *("doctor", "--run-id", swarm.run_id, "--peers", seed.address, "--device", "cpu", "--json"),
            *("--data-dir", str(swarm.folder / "newcomer")),
        )
        well = swarm.call(*look, "--listen", "/ip4/127.0.0.1/tcp/0")
        assert (well.returncode, well.stderr) == (0, "")
        told = json.loads(well.stdout)
        assert told["makes_sense"] is True
        levels = {finding["subject"]: finding["level"] for finding in told["findings"]}
        assert {subject: levels[subject] for subject in ("clock", "reachable", "disk", "software")} == dict.fromkeys(
            ("clock", "reachable", "disk", "software"), "ok"
        )
        line = told["facts"]["line"]
        assert line["asked"] == [seed.peer_id]
        assert line["upload_bits_per_second"] > 0
        assert line["download_bits_per_second"] > 0
        assert abs(line["clock_offset_seconds"]) < 1.0
        assert len(line["dial_back"]["reached"]) == 1

        seed.kill_all()
        alone = swarm.call(*look, "--timeout", "1")
        assert alone.returncode == 3
        assert json.loads(alone.stdout)["makes_sense"] is False
