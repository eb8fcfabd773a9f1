"""Addresses of a run from earlier sessions and from the page in its manifest, if the user gave none."""

from __future__ import annotations

from pathlib import Path

from dht.ground.errors import LocalFault, UsageFault, writing
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, read_cached_peers, write_cached_peers
from peer.console.notices import say
from peer.data_folder.folder_lock import told_holder_of
from peer.data_folder.run_folders import folders_of, known_places, seed_command
from peer.observe.ended_run import NamedRun, RunEnd, end_signed_here
from peer.observe.run_names import owned_folders
from peer.user_folders import PASS_NAME, RUN_RECORD_NAME


def check_addresses(config: PeerConfig) -> None:
    """Ask the run's page for addresses before a peer joins, if the manifest has a page and the user gave no address.

    The addresses are stored with those of earlier sessions. A page that does not answer only causes a message.

    Raises:
        Incompatible: the run has ended.
        UsageFault: no member is known, and the run does not begin on this machine.
        LocalFault: the data folder is not writable.
    """
    if config.peers:
        return
    known = read_cached_peers(config.cached_peers_path)
    says = page_of(config)
    if says is not None and says.end is not None:
        raise says.end.refusal()
    found = (says and says.peers) or addresses_elsewhere(config.run_id)
    if found:
        with writing(config.data_dir, "give another --data-dir"):
            write_cached_peers(config.cached_peers_path, [*found, *known])
    elif not known and not config.run_record_path.exists():
        raise no_address(config.run_id, config.data_dir)


def known_end(config: PeerConfig) -> RunEnd | None:
    """Return the run's end as known before any member is asked: signed in its folder, or reported by its page.

    The page is not asked if the user gave addresses; None if no end is known.
    """
    end = end_signed_here(config.run_id, config.data_dir)
    if config.peers or (end is not None and end.is_over):
        return end
    says = page_of(config)
    return (None if says is None else says.end) or end


def page_of(config: PeerConfig) -> NamedRun | None:
    """Return the answer of the page in the run's manifest on this machine.

    None if there is no page, or, with a message, if the page does not answer for this run.
    """
    if not config.run_record_path.exists():
        return None
    # These modules load many classes and HTTP, which most command lines do not need.
    from peer.observe import run_page
    from peer.observe.kept_manifest import manifest_here

    manifest = manifest_here(config.run_record_path, config.run_id)
    page = None if manifest is None else manifest.page_address
    if page is None:
        return None
    try:
        says = run_page.ask_page(page, of_manifest=True)
    except LocalFault as fault:
        say(f"{fault} Continuing with the addresses from earlier sessions.")
        return None
    if says.run_id != config.run_id:
        say(f"The page {page} now belongs to {says.run_id}, not {config.run_id}; its addresses are not used.")
        return None
    return says


def addresses_elsewhere(run_id: str) -> list[str]:
    """Return addresses of the run's peers in all folders on this machine."""
    return [one for folder in folders_of(run_id) for one in read_cached_peers(folder / ADDRESSES_NAME)]


def is_anybody_known(run_id: str) -> bool:
    """Return whether this machine has a folder of a run with its manifest or an address of a member."""
    folders = folders_of(run_id)
    names = (ADDRESSES_NAME, "cached_peers.json", RUN_RECORD_NAME, PASS_NAME)
    return any((folder / name).exists() for folder in folders for name in names)


def no_address(run_id: str, data_dir: Path) -> UsageFault:
    """Return the fault for a run without a known member."""
    elsewhere = [folder for _, folder in known_places(run_id) if folder != data_dir.absolute()]
    hint = f" This machine has a folder of this run, {elsewhere[0]}: select it with --data-dir." if elsewhere else ""
    running = next((holder for folder in elsewhere if (holder := told_holder_of(folder))), None)
    if running is not None:
        hint = f" On this machine {running} is in this run: try again when it shows its address."
    elif owned := owned_folders(run_id):
        hint = f" This run is yours: start its seed with `{seed_command(run_id, owned[0])}`."
    return UsageFault(
        f"No address of a member of {run_id} is known in {data_dir}; expected the run's complete link "
        f"(murmuration://RUN@HOST:PORT/PEERID), which `peer seed` prints, or the address of its page.{hint}"
    )
