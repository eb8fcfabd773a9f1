"""Selects the compute device of a peer or of each of its processes, and names it for people."""

from __future__ import annotations

import torch

from dht.ground.errors import DeviceFault, UsageFault
from dht.ground.quantities import plural
from peer.trainer.devices.torchrun import Place


def select_device(name: str) -> torch.device:
    """Return the device for ``auto`` (CUDA, then MPS, then CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises:
        DeviceFault: the device is of an unknown kind or is not available; the message lists the available devices.
    """
    num_cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    there = ["cpu", *(f"cuda:{index}" for index in range(num_cuda)), *(["mps"] if has_mps else [])]
    if name == "auto":
        return torch.device("cuda:0" if num_cuda else "mps" if has_mps else "cpu")
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in there:
        raise DeviceFault(
            f"device {name!r} is not available; expected a device of this machine and of torch {torch.__version__}: "
            f"{', '.join(there)}; choose one of them, or --device auto"
        )
    return torch.device(wanted)


def device_of(name: str, place: Place) -> torch.device:
    """Return the device of one rank.

    Raises:
        DeviceFault: the device is not available.
    """
    device = select_device(name)
    if device.type != "cuda":
        return device
    if name.startswith("cuda:"):
        raise UsageFault(
            f"--device {name} names one GPU, but there are {place.size} processes; expected cuda or auto; choose "
            "GPUs with CUDA_VISIBLE_DEVICES"
        )
    num_there = torch.cuda.device_count()
    if place.local_rank >= num_there:
        raise DeviceFault(
            f"process {place.rank} of this peer needs a separate GPU, but this machine has {num_there}; expected at "
            f"least {place.local_rank + 1}; use --devices {num_there}, or --device cpu"
        )
    return torch.device(f"cuda:{place.local_rank}")


def describe_device(device: torch.device, num_devices: int = 1) -> str:
    """Return a short name for people, e.g. ``NVIDIA H200``, ``2 x NVIDIA H200`` or ``cpu, 8 threads``; at most 40
    characters.
    """
    if num_devices > 1:
        return f"{num_devices} x {describe_device(device)}"[:40]
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))[:40]
    return f"cpu, {plural(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else device.type
