"""The kernel's TCP congestion control: cubic treats each lost packet as a full line, BBR measures the line.

A process cannot choose for its daemon's connections; the machine's owner can, with one command (Linux).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

BBR: Final = "bbr"
"""Paces the data of each connection (draft-ietf-ccwg-bbr)."""
IN_USE: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def congestion_control(path: Path = IN_USE) -> str:
    """Return the kernel's name of the congestion control; empty if the system does not provide it."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
