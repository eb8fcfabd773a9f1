"""What the figures of a benchmark may depend on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from averaging.codec import compiled_kernels


def machine() -> dict[str, Any]:
    """Processor, cores, GPU, system and the versions of what computes."""
    import torch  # not with this module: members of a benchmark that do not train have no need of it

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    versions = {}
    for package in ("torch", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
        "torch_vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": compiled_kernels.missing_reason() or "compiled",
        **versions,
    }
