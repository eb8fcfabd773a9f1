"""Which TCP congestion control the kernel uses: cubic takes each lost packet for a full line, BBR measures the line.

A process cannot choose for its daemon's connections; the machine's owner can, with one command (Linux).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

BBR: Final = "bbr"
"""Paces by itself what a connection sends (draft-ietf-ccwg-bbr)."""
IN_USE: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def congestion_control(path: Path = IN_USE) -> str:
    """The kernel's name of it; empty where the system does not say."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
