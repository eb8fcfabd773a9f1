"""Facts about this machine: versions, device, memory, disk and free ports."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from averaging.codec import compiled_kernels
from dht.ground.errors import DeviceFault, LocalFault
from dht.identity.multiaddr import parse_multiaddr
from dht.p2pd.congestion_control import congestion_control
from dht.p2pd.daemon import claim_ports, find_p2pd
from peer.config.peer_config import PeerConfig, other_run_in
from peer.doctor.doctor_facts import MachineFacts
from peer.memory.least_memory import available_memory_bytes
from peer.network.membership.way_out import has_way_out
from peer.trainer.devices.device_choice import describe_device, select_device
from peer.user_folders import folder_fault, place_of
from peer.version import full_version


def look_at_machine(config: PeerConfig) -> MachineFacts:
    """Return the facts that are known without a run."""
    device_text, device_fault, device_free = "", "", None
    try:
        device = select_device(config.device)
        device_text = describe_device(device)
        device_free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
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
        folder_fault=folder_fault(config.data_dir) or other_run_in(config),
        has_way_out=has_way_out(),
    )


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


def _port_fault(listen: Sequence[str]) -> str:
    try:
        claim_ports([parse_multiaddr(address) for address in listen])
    except LocalFault as fault:
        return str(fault)
    return ""
