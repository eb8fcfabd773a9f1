"""Confine a child process: its environment, and limits that it sets for itself before it imports a library.

Loads only the standard library. On Linux the kernel keeps the limits; elsewhere the parent watches the memory, and
sockets are refused to Python code alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import resource
import site
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

KEPT_VARIABLES: Final = (
    *("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"),
)
"""A child sees these and `LC_*`: enough to find its libraries. All others may hold a credential."""

_CPU_GRACE_SECONDS = 10
"""Added to the parent's time limit: the processor limit ends only a child whose parent no longer can."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_PLACE, _ARCHITECTURE_PLACE = 0, 4  # in struct seccomp_data
_X32_BIT = 0x40000000
"""x86_64 kernels may accept every call a second time under these numbers; aarch64 has none as high."""
_ARCHITECTURES: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = {
    # socket, connect, sendto, sendmsg; ptrace, process_vm_readv, process_vm_writev; io_uring_setup, pidfd_getfd
    "x86_64": (0xC000003E, (41, 42, 44, 46, 101, 310, 311, 425, 438)),
    "aarch64": (0xC00000B7, (198, 203, 206, 211, 117, 270, 271, 425, 438)),
}
"""Each one's number in seccomp, and calls that are refused: those that open a connection, or take one of another
process."""


def confined_environment(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the environment of a child: an allow list of `environ`, and the empty `folder` instead of the home
    folder.
    """
    kept = {name: value for name, value in environ.items() if name in KEPT_VARIABLES or name.startswith("LC_")}
    folders = ("HOME", "TMPDIR", "HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    kept |= dict.fromkeys(folders, folder) | {"USER": "peer", "LOGNAME": "peer"}
    kept |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"), "1")
    # Each thread uses memory for its own stack and heap; the same file must fit on every machine.
    kept |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    kept |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    if site.ENABLE_USER_SITE:
        kept["PYTHONUSERBASE"] = site.getuserbase()  # libraries installed with `pip install --user`
    return kept


def refuse_network() -> None:
    """Refuse every new socket to this process and its children. Call it before any thread starts."""
    sys.addaudithook(_refuse_sockets)
    if sys.platform == "linux" and platform.machine() in _ARCHITECTURES:
        # A kernel without seccomp has only the audit hook.
        with contextlib.suppress(OSError):
            _install_filter(*_ARCHITECTURES[platform.machine()])


def limit_process() -> None:
    """Write no core file, and be the first process that the system kills when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def limit_memory(memory_bytes: int) -> None:
    """Limit the additional memory of this process. On Linux, the kernel refuses further allocations.

    RLIMIT_DATA counts private memory that can be written. RLIMIT_AS also counts memory that is only reserved, and torch
    for GPUs reserves tens of gigabytes.
    """
    if sys.platform == "linux":
        limit = _data_bytes() + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def limit_processor(seconds: float) -> None:
    """End this process when it has computed for much longer than `seconds` from now on, on every core."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    limit = math.ceil(used + (seconds + _CPU_GRACE_SECONDS) * (os.cpu_count() or 1))
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def resident_bytes(process_id: int) -> int:
    """Return the memory that a process of this user holds, or 0 if it has ended."""
    command = ["ps", "-o", "rss=", "-p", str(process_id)]
    text = subprocess.run(command, capture_output=True, check=False).stdout.strip()
    return 1024 * int(text) if text.isdigit() else 0


def _refuse_sockets(event: str, _: tuple[Any, ...]) -> None:
    if event.startswith("socket.") and event != "socket.gethostname":
        raise PermissionError(f"{event} is refused: this process has no network")


def _install_filter(architecture: int, calls: tuple[int, ...]) -> None:
    rules = [
        (_LOAD, 0, 0, _ARCHITECTURE_PLACE),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_PLACE),
        (_JUMP_IF_AT_LEAST, len(calls) + 1, 0, _X32_BIT),
        *((_JUMP_IF_EQUAL, len(calls) - place, 0, call) for place, call in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(rules), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_ulong(0)
    for option, value, further in (
        (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.c_char_p(program)),
    ):
        if libc.prctl(option, value, further, nothing, nothing):
            raise OSError(ctypes.get_errno(), "prctl")


def _data_bytes() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmData:"))
