"""What this machine has: versions, device, memory, disk and free ports."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import nn

from averaging.codec import compiled_kernels
from dht.ground.errors import DeviceFault, LocalFault, UsageFault
from dht.ground.regular_files import read_regular
from dht.identity.keys import Identity
from dht.identity.multiaddr import parse_multiaddr
from dht.p2pd.congestion_control import congestion_control
from dht.p2pd.daemon import claim_ports, find_p2pd
from peer.config.peer_config import PeerConfig, other_run_in
from peer.config.training_section import TrainingSection
from peer.doctor.doctor_facts import MachineFacts
from peer.memory.least_memory import available_memory_bytes
from peer.network.membership.way_out import has_way_out
from peer.observe.known_addresses import taken_by_own_peer
from peer.trainer.devices.device_choice import describe_device, select_device
from peer.trainer.hf.architecture import Compressed
from peer.trainer.model.inner_optimizer import make_optimizer
from peer.user_folders import folder_fault, place_of
from peer.version import full_version

MAX_COMMAND_BYTES: Final = 256 * 1024
"""Of a process; a longer command line is no peer's."""


def look_at_machine(config: PeerConfig) -> MachineFacts:
    """Everything that is known without a run."""
    device_text, device_fault, device_free, bits_fault = "", "", None, ""
    try:
        device = select_device(config.device)
        device_text = describe_device(device)
        device_free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        bits_fault = _bits_fault(config, device)
    except DeviceFault as fault:
        device_fault = str(fault)
    return MachineFacts(
        versions=_versions(),
        device=device_text,
        device_fault=device_fault,
        device_free_bytes=device_free,
        memory_free_bytes=available_memory_bytes(),
        disk_free_bytes=_disk_free_bytes(config.data_dir),
        data_dir=str(config.data_dir),
        port_fault=_port_fault(config.listen_addresses),
        congestion_control=congestion_control(),
        kernels_fault=compiled_kernels.missing_reason(),
        other_peers=tuple(f"process {number} (peer {command})" for number, command in running_peers()),
        folder_fault=folder_fault(config.data_dir) or other_run_in(config),
        bits_fault=bits_fault,
        key_fault=_key_fault(config),
        has_way_out=has_way_out(),
    )


def running_peers(processes: Path = Path("/proc")) -> list[tuple[int, str]]:
    """(process, command) of each `peer join` or `peer seed` of this machine, of any user; none without /proc."""
    found = []
    for folder in processes.glob("[0-9]*"):
        try:
            words = read_regular(folder / "cmdline", MAX_COMMAND_BYTES).decode(errors="replace").split("\0")
        except (OSError, UsageFault):
            continue  # it has ended meanwhile
        for program, command in pairwise(words[:4]):
            if Path(program).name == "peer" and command in ("join", "seed"):
                found.append((int(folder.name), command))
    return sorted(found)


def _versions() -> dict[str, str]:
    versions = {"murmuration": full_version(), "Python": platform.python_version()}
    for name in ("torch", "hivemind"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    try:
        find_p2pd()
    except LocalFault:
        versions["its daemon p2pd"] = ""
    return versions


def _disk_free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(place_of(folder)).free
    except OSError:
        return None


def _key_fault(config: PeerConfig) -> str:
    try:
        if config.identity.exists():
            Identity.load(config.identity)
            return ""
    except OSError as error:
        return f"{config.identity} cannot be read ({error.strerror}); expected your own file; give another --identity"
    except LocalFault as fault:
        return str(fault)
    # That of the usual place is in the data folder, which is looked at anyway.
    folder = config.identity.parent
    missing = "" if folder == config.data_dir else folder_fault(folder)
    return missing and f"{missing}; expected a folder for this peer's key; give another --identity"


def _bits_fault(config: PeerConfig, device: torch.device) -> str:
    try:
        if config.base_bits != "full":
            Compressed(int(config.base_bits), device).check()
        if config.optimizer_bits != "32":
            make_optimizer([("one", nn.Parameter(torch.zeros(1)))], TrainingSection(), bits=config.optimizer_bits)
    except LocalFault as fault:
        return str(fault)
    return ""


def _port_fault(listen: Sequence[str]) -> str:
    try:
        claim_ports([parse_multiaddr(address) for address in listen])
    except UsageFault as fault:
        return str(fault)
    except LocalFault as fault:
        fault = taken_by_own_peer(fault, listen)
        return str(fault)
    return ""
