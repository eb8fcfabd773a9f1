"""Checks of a peer before slow imports: libraries, ports, its data, and a member that answers."""

from __future__ import annotations

import contextlib
import time
from importlib.util import find_spec

from dht.ground.errors import Incompatible, NobodyReachable, PeerFault, UsageFault
from dht.ground.regular_files import read_regular
from dht.identity.keys import Identity
from dht.records.signed_manifest import MAX_RUN_RECORD_BYTES, RunRecord, decode_run_record
from peer.config.peer_config import RUN_RECORD_NAME, PeerConfig
from peer.data_folder.run_folders import folders_of
from peer.events.peer_events import Event, SwarmContact
from peer.network.membership.address_check import JOIN_ADVICE, ask_as_invited, look_first
from peer.network.membership.invitation import load_pass
from peer.network.membership.members_here import addresses_now
from peer.network.membership.profile_file import load_contributor
from peer.observe.ended_run import SEARCH_SECONDS, end_in, end_signed_here
from peer.observe.known_addresses import no_address
from peer.panel.terminal import Terminal


def check_choices(config: PeerConfig, *, trains: bool) -> None:
    """Check that libraries, data and keys exist and that ports are free, before this peer has a folder or a panel.

    Args:
        trains: whether this peer trains and needs data.

    Raises:
        UsageFault: a library that the configuration needs is not installed, or data or a key is missing.
        LocalFault: another program uses a port.
    """
    if trains:
        _check_libraries(config)
        check_data(config)
    if config.contributor_key is not None:
        load_contributor(config.contributor_key, create=False)
    if "listen" in config.model_fields_set:
        from dht.identity.multiaddr import parse_multiaddr
        from dht.p2pd.daemon import claim_ports

        claim_ports([parse_multiaddr(address) for address in config.listen_addresses])


def wait_for_members(config: PeerConfig, terminal: Terminal, *, trains: bool) -> None:
    """Wait until a member answers, before slow imports, and check the manifest. Blocks.

    A run that can start on this machine does not need a member. The check covers the end of the run, and the data and
    weights that this peer must bring.

    Args:
        trains: whether this peer trains and needs data.

    Raises:
        LocalFault: no address of a member is known, no member answered in time, or a member trains a different run; or
            the run has ended, or this peer must bring data or weights and has none.
    """
    terminal.step("run")
    record = _record_of_run(config, terminal) or _record_elsewhere(config)
    if record is not None:
        _check(record, config, trains=trains)
    terminal.step("run")
    terminal.step("program")


def check_data(config: PeerConfig) -> None:
    """Check that the files of --data and --base exist and can be read.

    Raises:
        UsageFault: a file or folder is missing or unreadable.
    """
    kind, _, places = (config.data or "").partition(":")
    if kind in ("text", "jsonl", "parquet", "tokens"):
        from peer.trainer.text.source_files import check_readable

        check_readable(places)
    if kind == "tokens":
        from peer.trainer.data.shards import META_NAME, prepared_folder_of, without_meta

        if not (prepared_folder_of(places) / META_NAME).exists():
            raise without_meta(places)
    base = config.base
    if base is not None and not (base.is_dir() and any(base.glob("*.safetensors"))):
        found = "has no *.safetensors file" if base.is_dir() else "is not a folder"
        raise UsageFault(f"{base} {found}; expected a folder with a model's weights as safetensors; check --base")


def _check_libraries(config: PeerConfig) -> None:
    if config.track is not None:
        from peer.tracking.trackers import check_tracker

        check_tracker(config.track)
    for flag, bits in (("--optimizer-bits", config.optimizer_bits), ("--base-bits", config.base_bits)):
        if bits not in ("32", "full") and find_spec("bitsandbytes") is None:
            raise UsageFault(
                f"{flag} {bits} needs bitsandbytes, which is not installed; run: `pip install "
                f"bitsandbytes`, or leave {flag} out"
            )


def _record_of_run(config: PeerConfig, terminal: Terminal) -> RunRecord | None:
    """Return the run's record: the kept record if the run can start on this machine, otherwise the one from a member.

    None means that the record cannot be read yet.
    """
    is_here, kept = _kept_record(config)
    # Without a checkpoint, this peer would train a run that has ended from the beginning.
    end = end_signed_here(config.run_id, config.data_dir)
    if is_here and (end is None or any(config.checkpoints_path.glob("checkpoint-*"))):
        return kept
    own = Identity.load_or_create(config.identity)
    ticket_pass = load_pass(config.data_dir)
    addresses = addresses_now(config)
    if not addresses:
        raise no_address(config.run_id, config.data_dir) if end is None else end.nobody_left()

    def wait(reason: str, seconds: float) -> None:
        terminal.show(Event(time.time(), own.peer_id, SwarmContact("waiting", seconds, reason=reason)))

    patience = config.join_timeout_seconds
    try:
        said = look_first(
            *(config.run_id, addresses, patience if end is None else min(patience, SEARCH_SECONDS)),
            own=own.peer_id,
            asks=ticket_pass is None,
            on_waiting=wait,
            advice=JOIN_ADVICE,
            later=lambda: addresses_now(config),
        )
    except NobodyReachable as fault:
        raise fault if end is None else end.nobody_left(addresses) from fault
    if ticket_pass is None:
        return said
    terminal.keep_folder()
    return ask_as_invited(config.run_id, addresses_now(config), own, ticket_pass)


def _record_elsewhere(config: PeerConfig) -> RunRecord | None:
    """Return the record of another peer on this machine, because members of a private run send a newcomer no record."""
    for folder in folders_of(config.run_id):
        with contextlib.suppress(OSError, PeerFault):
            return decode_run_record(read_regular(folder / RUN_RECORD_NAME, MAX_RUN_RECORD_BYTES), run_id=config.run_id)
    return None


def _kept_record(config: PeerConfig) -> tuple[bool, RunRecord | None]:
    """Return whether this machine has the run's signed manifest, so that the run can start here, and the record.

    The record is None if there is no file, or if the file cannot be read.

    Raises:
        Incompatible: the run's owner did not sign the file, and no member is known that could send the manifest.
    """
    path = config.run_record_path
    try:
        return True, decode_run_record(read_regular(path, MAX_RUN_RECORD_BYTES), run_id=config.run_id)
    except FileNotFoundError:
        return False, None
    except OSError:
        return True, None  # the network process reports the problem
    except PeerFault as fault:
        if config.peers or config.cached_peers_path.exists():
            return True, None
        what, *_ = fault.what.split("; ")
        raise Incompatible(
            f"{path} holds {what}; expected the manifest of {config.run_id}, signed by the run's owner; move that file "
            "away, and pass a member's address with --peers"
        ) from fault


def _check(record: RunRecord, config: PeerConfig, *, trains: bool) -> None:
    """Check the manifest against this peer's choices.

    Raises:
        LocalFault: the run has ended, or this peer must bring data or weights and has none.
    """
    # Imported here, because these classes take a tenth of a second and are not needed if the run is not found.
    from peer.config.data_source import source_here
    from peer.config.manifest import RunManifest

    try:
        manifest = RunManifest.from_bytes(record.manifest)
    except ValueError:
        return  # the network process reports the problem
    end = end_in(manifest, config.run_id, config.data_dir, "from a member")
    if end is not None and end.is_over:
        raise end.refusal()
    if not trains or manifest.model.kind == "custom":
        return
    source_here(manifest.data.source, config.data, manifest.tokenizer is not None, manifest.data.digest)
    init = manifest.model.init
    if init is not None and init.source == "folder" and config.base is None:
        raise init.not_given()
