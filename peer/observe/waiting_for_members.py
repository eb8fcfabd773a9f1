"""What a peer does before it loads anything heavy: it waits until a member of its run answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dht.errors import Incompatible, NobodyReachable, PeerFault
from dht.identity.keys import Identity
from dht.records.signed_records import MAX_RUN_RECORD_BYTES, RunRecord, decode_run_record
from dht.regular_files import read_regular
from peer.config.peer_config import PeerConfig, read_cached_peers
from peer.events.peer_events import Event, WaitingForPeers
from peer.network.membership.first_look import JOIN_ADVICE, look_first
from peer.network.membership.invitation import load_pass
from peer.observe.ended_run import SEARCH_SECONDS, end_in, end_signed_here


def wait_for_answer(config: PeerConfig, show: Callable[[Event], object], *, trains: bool) -> None:
    """Wait until a member answers, unless the run can begin on this machine. Blocks.

    What the member says of the run is checked as far as that needs nothing heavy: its end, and what data and weights it
    needs.

    Args:
        show: told while nobody answers.
        trains: this peer, so that it needs data.

    Raises:
        LocalFault: nobody is known, nobody answered in time, or another run is trained there; or the run has ended, or
            this peer did not say which data or weights it has.
    """
    has_record = _has_record(config)
    # Without a state of its own this peer would train a run of the past from the beginning.
    end = end_signed_here(config.run_id, config.data_dir) if has_record else None
    if has_record and (end is None or any(config.checkpoints_path.glob("checkpoint-*"))):
        if trains:
            _check_brought_here(config)
        return
    own = Identity.load_or_create(config.identity).peer_id
    addresses = list(dict.fromkeys([*config.peers, *read_cached_peers(config.cached_peers_path)]))
    if not addresses:
        from peer.observe.known_addresses import no_address  # with it what asks pages

        raise no_address(config.run_id, config.data_dir) if end is None else end.nobody_left()

    def wait(reason: str, seconds: float) -> None:
        show(Event(time.time(), own, WaitingForPeers(reason, seconds)))

    patience = config.join_timeout_seconds
    try:
        record = look_first(
            *(config.run_id, addresses, patience if end is None else min(patience, SEARCH_SECONDS)),
            own=own,
            asks=load_pass(config.data_dir) is None,
            on_waiting=wait,
            advice=JOIN_ADVICE,
        )
    except NobodyReachable as fault:
        raise fault if end is None else end.nobody_left(addresses) from fault
    if record is not None:
        _check(record, config, trains=trains)


def _check(record: RunRecord, config: PeerConfig, *, trains: bool) -> None:
    """Raises LocalFault: the run has ended, or data or weights are missing."""
    # A tenth of a second of classes, which nobody needs if there is no such run.
    from peer.config.manifest import RunManifest

    try:
        manifest = RunManifest.from_bytes(record.manifest)
    except ValueError:
        return  # the network side says what is wrong with it
    end = end_in(manifest, config.run_id, config.data_dir, "from a member")
    if end is not None and end.is_over:
        raise end.refusal()
    if trains:
        _check_brought(manifest, config)


def _check_brought_here(config: PeerConfig) -> None:
    from peer.observe.kept_manifest import manifest_here

    kept = manifest_here(config.run_record_path, config.run_id)
    if kept is not None:
        _check_brought(kept, config)


def _check_brought(manifest: Any, config: PeerConfig) -> None:
    """Of a `RunManifest`. Raises UsageFault: data or weights that every volunteer brings to the run are not named."""
    from peer.config.data_source import source_here

    if manifest.model.kind == "custom":
        return
    source_here(manifest.data.source, config.data, manifest.data.reader)
    init = manifest.model.init
    if init is not None and init.source == "folder" and config.base is None:
        raise init.not_given()


def _has_record(config: PeerConfig) -> bool:
    """Whether the run's signed manifest is here, so that it can begin on this machine.

    Raises:
        Incompatible: what is there is not signed by the run's owner, and nobody is known who could give another one.
    """
    path = config.run_record_path
    try:
        decode_run_record(read_regular(path, MAX_RUN_RECORD_BYTES), run_id=config.run_id)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # the network side says what is wrong with it
    except PeerFault as fault:
        if config.peers or config.cached_peers_path.exists():
            return True
        what, *_ = fault.what.split("; ")
        raise Incompatible(
            f"{path} holds {what}; expected the manifest of {config.run_id}, signed by the run's owner; move that file "
            "away, and give --peers of a member"
        ) from fault
    return True
