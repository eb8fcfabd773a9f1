"""What processes of a benchmark take, read from /proc (Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Process:
    """One living process; memory in MB (2^20 bytes) as the kernel counts it.

    Attributes:
        peak_mb: most resident memory so far, pages shared with other processes included.
        own_mb: anonymous memory resident now.
        shared_mb: resident now of shared memory, such as the mailbox.
    """

    pid: int
    parent: int
    command: str
    cpu_seconds: float
    peak_mb: float
    own_mb: float
    shared_mb: float


def family(pid: int) -> list[Process]:
    """The process and all its descendants that live now."""
    everyone = [one for entry in Path("/proc").iterdir() if entry.name.isdigit() if (one := look(int(entry.name)))]
    found = [one for one in everyone if one.pid == pid]
    for member in found:
        found += [one for one in everyone if one.parent == member.pid]
    return found


def look(pid: int) -> Process | None:
    """The process as it is now; None when it has gone."""
    folder = Path(f"/proc/{pid}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return None
    status = {name: text.split()[0] for name, _, text in (line.partition(":") for line in lines) if text.split()}
    ticks = int(fields[11]) + int(fields[12])
    peak, own, shared = (int(status.get(name, "0")) / 1024 for name in ("VmHWM", "RssAnon", "RssShmem"))
    return Process(pid, int(fields[1]), words, ticks / _TICKS_PER_SECOND, peak, own, shared)


def role(process: Process) -> str:
    """``daemon``, ``network`` or ``trainer``."""
    if "/p2pd" in process.command.split(" ")[0]:
        return "daemon"
    return "network" if "peer.network.process.main" in process.command else "trainer"
