"""Real peers that are killed while they download: what is here and checked is not fetched again."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from peer.events.anchor_events import Fetched
from peer.events.peer_events import TrainingProgressed
from peer.files.checked_folder import checked_folder, files_folder
from tests.kit.processes.process_swarm import TINY_RUN, ProcessSwarm, process_swarm, wait_until
from tests.kit.trainer.prepared_data import prepared
from tests.kit.trainer.shard_server import ShardServer, self_signed

CHUNK_BYTES = 1 << 20


def test_a_file_of_the_run_goes_on_where_a_kill_ended_it() -> None:
    files = {"model.safetensors": os.urandom(12 * CHUNK_BYTES)}
    with process_swarm(make=partial(ProcessSwarm, files=files)) as swarm:
        seed = swarm.start("seed", "--serve-limit-mbit", "8", command="seed", has_record=True)
        wait_until(lambda: "Listening on" in seed.stderr, "the seed is up")
        peer = swarm.start("peer", peers=[seed.address])
        manifest = swarm.run.manifest
        part = files_folder(swarm.folder_of("peer"), manifest) / ".model.safetensors.part"
        wait_until(lambda: part.exists() and part.stat().st_size >= 4 * CHUNK_BYTES, "a third of the file is here")
        peer.kill_all()
        # The seed can give the first chunk no more: whoever asks for it gets nothing.
        served = files_folder(swarm.folder_of("seed"), manifest) / "model.safetensors"
        with served.open("r+b") as file:
            file.write(bytes(CHUNK_BYTES))
        again = swarm.start("peer", peers=[seed.address])
        assert again.wait_for(Fetched, lambda fact: bool(fact.names)).donors == (seed.peer_id,)
        folder = checked_folder(swarm.folder_of("peer"), manifest)
        assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]


def largest_part(cache: Path) -> Path | None:
    """The shard under way of which most is here: the next one may have begun without a byte."""
    return max(cache.glob("*.part"), key=size_of, default=None)


def size_of(part: Path | None) -> int:
    """Bytes of a file that may be gone or renamed by now: then 0."""
    try:
        return 0 if part is None else part.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_shard_goes_on_where_its_server_broke_off_and_a_wrong_one_is_left_out(tmp_path: Path) -> None:
    shards, meta, digest, tokenizer = prepared(tmp_path)
    certificate = self_signed(tmp_path / "certificate.pem")
    server = ShardServer(shards, certificate)
    run = TINY_RUN.replace("context = 32", "context = 32\nvocab_size = 300").replace(
        'source = "text:"', f'source = "{server.url}"\ndigest = "{digest}"'
    )
    make = partial(ProcessSwarm, files={"tokenizer.json": tokenizer.path.read_bytes()})
    trusted = {"SSL_CERT_FILE": str(certificate)}
    try:
        with process_swarm(run, make) as swarm:
            cache = swarm.folder_of("peer") / "data" / digest[:16]
            server.cut = 3000
            source = ("--data", server.url)
            peer = swarm.start("peer", *source, has_record=True, environment=trusted)
            wait_until(lambda: size_of(largest_part(cache)) >= 3000, "a shard broke off")
            peer.kill_all()
            part = largest_part(cache)
            assert part is not None
            name, num_bytes, num_before = part.stem, size_of(part), len(server.requests)
            server.cut = None
            others = [shard.name for shard in meta.training if shard.name != name]
            server.wrong = {others[-1]}
            again = swarm.start("peer", *source, environment=trusted)
            again.wait_for(TrainingProgressed, lambda fact: fact.inner_steps > 0)
            wait_until(lambda: f"{others[-1]}" in again.stderr, "what is wrong with that shard is said")
            assert "training continues with the local data" in again.stderr
            steps = again.inner_steps()
            again.wait_for(TrainingProgressed, lambda fact: fact.inner_steps > steps)
            wait_until(lambda: (cache / name).exists(), "the shard is whole")
            asked = server.requests[num_before:]
            assert (f"/{name}", f"bytes={num_bytes}-") in asked
            here = {"/meta.json", f"/{name}", *(f"/{shard.name}" for shard in meta.held_out)}
            assert not [path for path, start in asked if path in here and start is None], "fetched again"
            assert not (cache / others[-1]).exists()
            server.wrong = set()
            wait_until(lambda: (cache / others[-1]).exists(), "the right shard is taken")
            assert again.is_alive
    finally:
        server.close()
