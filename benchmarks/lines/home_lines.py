"""Emulated home lines for benchmarks, from a module that is given on the command line.

The module has a class `Lab(num_hosts, up=, down=, rtt=, loss=, cc=, hosts=)`, to be used in a `with` statement. Its
units are Mbit/s, ms, a fraction, and the kernel's name of a TCP congestion control. `hosts` maps a host's number to
what is different there. For `--queue` it takes `queue_ms=` as well. It has `ip(i)`, `run(i, command)`, which also takes
the arguments of `subprocess.Popen`, and `stats()`: per host the bytes on its line, ``tx`` and ``rx``. Such an emulator
needs network namespaces, and so root.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
MAX_HOSTS = 64
MAX_MBIT = 100_000.0
MAX_RTT_MS = 10_000.0


def numbers(text: str, count: int, option: str) -> list[float]:
    """`count` numbers from ``a`` or ``a/b/...``.

    Raises:
        SystemExit: not numbers, not positive, or neither one nor `count` of them.
    """
    try:
        found = [float(part) for part in text.split("/")]
    except ValueError:
        found = []
    if len(found) == 1:
        found *= count
    if len(found) != count or not all(0 < number <= MAX_MBIT for number in found):
        raise SystemExit(
            f"{option} {text}: expected one number of Mbit/s above 0 and up to {MAX_MBIT:g}, or {count} with / between "
            "them"
        )
    return found


def congestion_controls() -> list[str]:
    """What this kernel offers now; a kernel that does not say is taken to have cubic."""
    try:
        return CONGESTION_CONTROLS.read_text(encoding="ascii").split()
    except OSError:
        return ["cubic"]


def load_lab(path: Path) -> Any:
    """The class `Lab` of an emulator of lines.

    Raises:
        SystemExit: the module cannot be loaded.
    """
    spec = importlib.util.spec_from_file_location("lab", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"--lab {path}: expected a Python file with a class Lab")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SystemExit(
            f"--lab {path} cannot be loaded ({error!r}); expected a Python file with a class Lab"
        ) from error
    if not hasattr(module, "Lab"):
        raise SystemExit(f"--lab {path} has no class Lab; expected an emulator of lines (see benchmarks/lines/)")
    return module.Lab


@contextlib.contextmanager
def home_lines(
    lab: str | Path | None,
    up: Sequence[float],
    down: Sequence[float],
    rtt: float,
    loss: float = 0.0,
    congestion: str = "cubic",
    queue_ms: float | None = None,
) -> Iterator[Any]:
    """One line per host while the block runs; None without a `lab`: then everybody is on loopback.

    Args:
        up, down: Mbit/s of each host.
        rtt: round trip between any two of them, ms.
        loss: share of packets lost at each end, 0 to below 1.
        congestion: TCP congestion control of all hosts.
        queue_ms: of each router; None: as the emulator has it.

    Raises:
        SystemExit: an impossible line, no such module, or no namespaces for this user.
    """
    if lab is None:
        yield None
        return
    if not 0 <= loss < 1 or not 0 <= rtt <= MAX_RTT_MS or not 1 <= len(up) <= MAX_HOSTS:
        raise SystemExit(
            f"{len(up)} lines of {rtt:g} ms with loss {loss:g}: expected 1 to {MAX_HOSTS} lines, a round trip of 0 to "
            f"{MAX_RTT_MS:g} ms and a share of lost packets from 0 to below 1"
        )
    if congestion not in (offered := congestion_controls()):
        raise SystemExit(f"congestion control {congestion}: expected one that this kernel offers: {', '.join(offered)}")
    laboratory = load_lab(Path(lab))
    hosts = {index: {"up": one, "down": other} for index, (one, other) in enumerate(zip(up, down, strict=True))}
    with contextlib.ExitStack() as stack:
        try:
            line: dict[str, Any] = {"up": up[0], "down": down[0], "rtt": rtt, "loss": loss, "cc": congestion}
            line |= {} if queue_ms is None else {"queue_ms": queue_ms}
            opened = stack.enter_context(laboratory(len(up), **line, hosts=hosts))
        except (OSError, RuntimeError, TypeError, subprocess.SubprocessError) as error:
            who = "" if os.geteuid() == 0 else ", and this user is not root"
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SystemExit(
                f"--lab {lab}: the lines could not be laid ({reason}){who}; expected root and a kernel with network "
                "namespaces; leave --lab out to measure over loopback"
            ) from error
        yield opened
