"""What this machine has: versions, device, memory, disk, free ports, and how fast it trains a run's model."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from averaging.codec import compiled_kernels
from dht.ground.errors import DeviceFault, LocalFault, UsageFault
from dht.ground.regular_files import read_regular
from dht.identity.keys import Identity
from dht.identity.multiaddr import parse_multiaddr
from dht.p2pd.congestion_control import congestion_control
from dht.p2pd.daemon import claim_ports, find_p2pd
from peer.config.manifest import RunManifest
from peer.config.peer_config import BaseBits, OptimizerBits, PeerConfig, other_run_in
from peer.config.training_section import TrainingSection
from peer.doctor.doctor_facts import MachineFacts
from peer.memory.least_memory import Use, available_memory_bytes, check_memory, free_memory_bytes
from peer.network.membership.way_out import has_way_out
from peer.observe.known_addresses import taken_by_own_peer
from peer.trainer.devices.device_choice import describe_device, select_device
from peer.trainer.examples.label_rules import NUM_SHADES, rules_of
from peer.trainer.hf.architecture import Compressed
from peer.trainer.hf.run_model import build_run_model
from peer.trainer.model.inner_optimizer import has_fused, make_optimizer
from peer.user_folders import folder_fault, place_of
from peer.version import full_version

MAX_COMMAND_BYTES: Final = 256 * 1024
"""Of a process; a longer command line is no peer's."""
SPEED_SECONDS: Final = 3.0
"""For all measured steps together, if one is shorter; first ones compile kernels and fill caches."""


def look_at_machine(config: PeerConfig) -> MachineFacts:
    """Everything that is known without a run."""
    device_text, device_fault, device_free, bits_fault = "", "", None, ""
    try:
        device = select_device(config.device)
        device_text = describe_device(device)
        device_free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        bits_fault = _bits_fault(Bits(config.base_bits, config.optimizer_bits), device)
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
        port_fault=_port_fault(config.listen_addresses, config.ports),
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


@dataclass(frozen=True, slots=True)
class Bits:
    """How many bits the given weights under an adapter have, and AdamW's moments."""

    base: BaseBits = "full"
    optimizer: OptimizerBits = "32"

    def compressed(self, device: torch.device) -> Compressed | None:
        return None if self.base == "full" else Compressed(int(self.base), device)


def measure_step_seconds(manifest: RunManifest, device: torch.device, bits: Bits) -> float:
    """Seconds of one inner step of the run's model, with made-up tokens; a slow machine's are told from one sequence.

    Raises:
        DeviceFault: this machine has no memory for it.
        RuntimeError: the device has none.
    """
    # A base that is made up has all bits first.
    use: Use = "train on a GPU" if device.type == "cuda" else "train"
    check_memory(manifest, use, free_memory_bytes(), optimizer_bits=bits.optimizer)
    settings = manifest.training
    model: Any = build_run_model(manifest, for_speed=True, compressed=bits.compressed(device)).to(device)
    fused = has_fused(parameter for parameter in model.parameters() if parameter.requires_grad)
    optimizer = make_optimizer(model.named_parameters(), settings, fused=fused, bits=bits.optimizer)
    inputs, targets = _made_up(manifest)
    inputs, targets = inputs.to(device), targets.to(device)

    def pass_seconds(num_sequences: int) -> float:
        began = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = model.loss(inputs[:num_sequences], targets[:num_sequences])
        loss.backward()
        _wait_for(device)
        return time.perf_counter() - began

    def step_seconds() -> float:
        began = time.perf_counter()
        optimizer.step()
        _wait_for(device)
        return time.perf_counter() - began

    pass_seconds(1)
    one = pass_seconds(1)
    if one * settings.batch_size > SPEED_SECONDS:
        return one * settings.batch_size * settings.accumulation_steps
    fastest, began = pass_seconds(settings.batch_size), time.perf_counter()
    while time.perf_counter() - began < SPEED_SECONDS / 3:
        fastest = min(fastest, pass_seconds(settings.batch_size))
    step_seconds()  # makes the moments
    return fastest * settings.accumulation_steps + step_seconds()


def _wait_for(device: torch.device) -> None:
    """Until all that was asked of the device is done; otherwise a clock measures the asking."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _made_up(manifest: RunManifest) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch for the run's model."""
    size, shape, rules = manifest.training.batch_size, manifest.model, rules_of(manifest)
    if rules is None:
        tokens = torch.randint(0, shape.vocab_size, (size, shape.context + 1))
        return tokens[:, :-1], tokens[:, 1:]
    limit = shape.vocab_size if rules.picture is None else NUM_SHADES
    return torch.randint(0, limit, (size, rules.num_values)), torch.randint(0, len(rules.labels), (size,))


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


def _bits_fault(bits: Bits, device: torch.device) -> str:
    try:
        if (compressed := bits.compressed(device)) is not None:
            compressed.check()
        if bits.optimizer != "32":
            make_optimizer([("one", nn.Parameter(torch.zeros(1)))], TrainingSection(), bits=bits.optimizer)
    except LocalFault as fault:
        return str(fault)
    return ""


def _port_fault(listen: Sequence[str], ports: range | None) -> str:
    try:
        claim_ports([parse_multiaddr(address) for address in listen], ports)
    except UsageFault as fault:
        return str(fault)
    except LocalFault as fault:
        fault = taken_by_own_peer(fault, listen)
        return str(fault)
    return ""
